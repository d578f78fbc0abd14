"""Features common to all terms: names, checks of fields, heads, and how objects become terms and objectives."""

from collections import Counter
from dataclasses import dataclass, field, fields

import numpy as np
import pytest
import torch
from transformers import TrainingArguments

from informin.objectives import (
    PRESETS,
    TERMS,
    AttentionMI,
    Contrast,
    Decorrelation,
    GuidedSimilarity,
    MaskedLM,
    Reconstruction,
    SelfContrast,
)
from informin.objectives.presets import BERT_BASE, Encoder, Paper, Preset, active_terms, as_preset
from informin.objectives.term import Term, Views, fill_heads, losses_of
from informin.options import check_value, option, snake_case
from tests.conftest import ROOT, raises_usage
from tests.objectives.conftest import head_values, model_of, rows

INFINITE, NAN = float("inf"), float("nan")
HEADS = (Contrast(queue_size=7), Reconstruction(), Decorrelation(projector_size=8))
ENCODERS = [Encoder(model_type, width) for model_type in ("bert", "roberta") for width in (768, 1024)]
VIEWS = Views(torch.eye(3), torch.eye(3), torch.ones(3, 2))


# Fields


@pytest.mark.parametrize(
    "term, name, value, option",
    [
        *((Contrast, "temperature", value, "temperature") for value in (0, -0.1, INFINITE, NAN)),
        *((Reconstruction, "weight", value, "reconstruction_weight") for value in (-1, NAN, INFINITE)),
        (Contrast, "weight", -1, "contrast_weight"),
        (Reconstruction, "form", "l1", "reconstruction_form"),
        (SelfContrast, "form", "l1", "self_contrast_form"),
        (AttentionMI, "form", "unit", "attention_mi_form"),
        (Decorrelation, "off_diagonal_weight", INFINITE, "off_diagonal_weight"),
        (Decorrelation, "projector_size", 0, "projector_size"),
        (GuidedSimilarity, "neighbors", -1, "guided_neighbors"),
        (MaskedLM, "weight", -1, "mlm_weight"),
        (Contrast, "queue_size", -1, "queue_size"),
        *((Contrast, "momentum_decay", value, "momentum_decay") for value in (0, 1)),
        *((Contrast, "momentum_dropout", value, "momentum_dropout") for value in (1, -0.1)),
        (Contrast, "false_negative_similarity", "teacher", "false_negative_similarity"),
    ],
)
def test_invalid_values_are_rejected(term, name, value, option):
    with raises_usage(option=option):
        term(**{name: value})


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.name)
def test_defaults_and_choices_of_a_term_are_valid(term):
    """The weight is the first field."""
    assert fields(term)[0].name == "weight" and term().weight > 0
    for declared in fields(term):
        assert declared.metadata["help"]
        for choice in declared.metadata.get("choices", ()):
            assert getattr(term(**{declared.name: choice}), declared.name) == choice
    assert term.paper is None or list((ROOT / "informin/templates/citations").glob(f"{term.paper}.*"))


def test_names_and_options_of_terms_are_unique():
    assert max(Counter(term.name for term in TERMS).values()) == 1
    options = [term.option_name(declared.name) for term in TERMS for declared in fields(term)]
    assert max(Counter(options).values()) == 1
    assert not {*options} & {declared.name for declared in fields(TrainingArguments)}


def test_only_fields_with_an_effect_are_options():
    assert Contrast().options() == {"temperature": 0.05}
    assert Contrast(weight=2, queue_size=3).options() == {
        "contrast_weight": 2,
        "temperature": 0.05,
        "queue_size": 3,
        "momentum_decay": 0.995,
        "momentum_dropout": 0.3,
    }
    assert Reconstruction(weight=0.4).options() == {"reconstruction_weight": 0.4, "reconstruction_form": "code"}


# Terms of the user


@dataclass
class Spread(Term):
    weight: float = 0.5
    form: str | None = option(None, "help", choices=(None, "a", "b"))
    powers: list | None = None

    def check(self):
        check_value(self.powers != [2, 3], "powers", self.powers, "other powers")

    def loss(self, views):
        return views.z1.std(0).mean()


@dataclass
class Lossless(Term):
    weight: float = 1.0


def test_a_term_of_the_user_gets_names_and_checks():
    term = Spread(form="b", powers=[1])
    assert (term.name, term.title, term.head_name, term.weight) == ("spread", "spread", "spread", 0.5)
    assert term.options() == {"spread_weight": 0.5, "spread_form": "b", "powers": [1]} and term.head(None) is None
    for name, value, found in (("powers", [2, 3], "powers"), ("form", "c", "spread_form"), ("weight", -2, None)):
        with raises_usage(option=found or "spread_weight"):
            Spread(**{name: value})


def test_check_may_set_a_field():
    @dataclass
    class Counted(Plain):
        count: int = field(init=False)

        def check(self):
            self.count = 3

    assert Counted().options() == {"counted_weight": 1.0, "count": 3}


def test_a_term_without_a_loss_cannot_be_created():
    with pytest.raises(TypeError, match=r"Lossless.*loss"):
        Lossless()


@pytest.mark.parametrize(
    "name, expected", [("MaskedLM", "masked_lm"), ("MyTerm", "my_term"), ("AttentionMI", "attention_mi"), ("X", "x")]
)
def test_snake_case(name, expected):
    assert snake_case(name) == expected


@dataclass
class Plain(Term):
    def loss(self, views):
        return {"size": views.z1.sum(), "plain": views.z1.norm()}


def test_the_entry_with_the_name_of_the_term_is_the_loss():
    loss, others = losses_of(Plain(), VIEWS)
    assert loss == VIEWS.z1.norm() and others == {"size": 3}


class NotATerm(torch.nn.Dropout):
    weight = 1.0

    def loss(self, views):
        return self(views.z1).mean()


OTHER_OBJECTS = {
    "a class of terms": Contrast,
    "a module": NotATerm(),
    "a class": NotATerm,
    "a number": 3,
    "an object": object(),
    "text": "scd",
}


@pytest.mark.parametrize("given", OTHER_OBJECTS.values(), ids=OTHER_OBJECTS)
def test_other_objects_are_refused(given):
    with raises_usage(option="objective"):
        as_preset([given])


def test_the_first_entry_is_the_loss_without_the_name_of_the_term():
    class Two(Plain):
        def loss(self, views):
            return {"first": torch.tensor([1.0]), "second": 2, "third": np.float32(3)}

    loss, others = losses_of(Two(), VIEWS)
    assert loss.shape == () and (loss, others) == (1, {"second": 2, "third": 3})


# Objectives


def test_an_objective_is_a_name_a_term_or_a_list():
    assert [term.name for term in active_terms(as_preset("informin"), BERT_BASE)] == ["contrast", "reconstruction"]
    one = Contrast(temperature=0.1)
    assert active_terms(as_preset(one), BERT_BASE) == [one] == active_terms(as_preset([one]), BERT_BASE)
    assert as_preset([one]).name == "custom" and as_preset([one]).paper(BERT_BASE) == Paper()
    with raises_usage(option="objective", found="nonsense"):
        as_preset("nonsense")


def test_terms_without_weight_are_left_out_and_names_are_unique():
    assert active_terms(as_preset([Contrast(), Reconstruction(weight=0)]), BERT_BASE) == [Contrast()]
    for given in ([Contrast(weight=0)], [], [Reconstruction(form="unit"), Reconstruction()]):
        with raises_usage(option="objective"):
            active_terms(as_preset(given), BERT_BASE)
    with raises_usage(option="name"):
        term = Reconstruction()
        term.name = "a/b"
        active_terms(as_preset(term), BERT_BASE)
    for name in ("name", "head_name"):
        term = Reconstruction()
        setattr(term, name, "norm.v2")
        with raises_usage(option=name):
            active_terms(as_preset(term), BERT_BASE)
    second = Reconstruction(form="unit")
    second.name = second.head_name = "unit"
    assert len(active_terms(as_preset([second, Reconstruction()]), BERT_BASE)) == 2


def test_a_term_with_a_guide_is_copied():
    """It keeps the guide of its run, and another run may have another one."""
    guided = GuidedSimilarity()
    found = active_terms(as_preset([guided]), BERT_BASE)[0]
    assert found == guided and found is not guided
    plain = Contrast()
    assert active_terms(as_preset(plain), BERT_BASE)[0] is plain


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "noncontrastive"])
def test_presets_have_a_title_terms_and_hyperparameters(name):
    preset = PRESETS[name]
    assert preset.name == name and preset.title
    for encoder in ENCODERS:
        assert active_terms(preset, encoder)
        paper = preset.paper(encoder)
        assert paper.batch_size > 1 and 0 < paper.learning_rate < 1e-3 and bool(paper.source) == bool(preset.papers)


def test_values_depend_on_the_encoder():
    weights = [PRESETS["informin"].terms(encoder)[1].weight for encoder in ENCODERS]
    assert weights == [0.4, 0.4, 4.0, 4.0]
    alphas = [PRESETS["scd"].terms(encoder)[1].weight for encoder in (BERT_BASE, Encoder("roberta"))]
    assert alphas == [0.005, 0.0033] and PRESETS["scd"].paper(Encoder("roberta")).view_dropout == (0.065, 0.24)


def test_hyperparameters_fall_back_to_the_base_model_then_to_bert():
    bert, roberta, large = Paper(source="b"), Paper(source="r"), Paper(source="l")
    toy = Preset(name="toy", title="toy", terms=lambda encoder: [], papers={("bert", 768): bert})
    assert [toy.paper(Encoder(*key)) for key in (("bert", 1024), ("roberta", 768), ("other", 5))] == [bert] * 3
    papers = {("bert", 768): bert, ("roberta", 768): roberta, ("roberta", 1024): large}
    toy = Preset(name="toy", title="toy", terms=lambda encoder: [], papers=papers)
    assert [toy.paper(Encoder("roberta", width)).source for width in (1024, 768, 32)] == ["l", "r", "r"]


# Heads


def test_heads_are_added_to_the_model_in_the_order_of_the_terms(encoder):
    model = model_of(encoder)
    fill_heads(model, HEADS)
    assert list(model.heads) == ["queue", "decorrelation"]
    values = head_values(model, rows(encoder))
    assert list(values) == ["queue", "decorrelation"] and values["decorrelation"][0].shape == (6, 8)
    fill_heads(model, HEADS[::-1])
    assert list(model.heads) == ["decorrelation", "queue"]


def test_a_module_that_is_not_a_head_is_refused(encoder):
    class Layered(Plain):
        def head(self, model):
            return torch.nn.Linear(2, 2)

    with raises_usage(option="objective", fix="Head"):
        fill_heads(model_of(encoder), [Layered()])


def test_heads_of_an_earlier_training_are_removed(encoder):
    model = model_of(encoder)
    fill_heads(model, HEADS)
    before = model.heads["queue"]
    before.embeddings.add_(1)
    fill_heads(model, [Contrast(queue_size=7)])
    assert list(model.heads) == ["queue"] and model.heads["queue"] is not before
    assert not model.heads["queue"].embeddings.any()
    fill_heads(model, [Contrast()])
    assert not model.heads and not [name for name in model.state_dict() if name.startswith("heads.")]
