"""Features common to all terms: option checks, weights, and heads."""

from collections import Counter
from dataclasses import dataclass, fields

import pytest
from transformers import TrainingArguments

from informin.objectives import OBJECTIVES, Term
from informin.objectives.attention_mi import AttentionMI
from informin.objectives.contrast import Contrast
from informin.objectives.decorrelation import Decorrelation, SelfContrast
from informin.objectives.queue import Queue
from informin.objectives.reconstruction import Reconstruction
from informin.objectives.terms import Objective, PaperRow, check_value, fill_heads, option
from tests.conftest import ROOT, raises_usage
from tests.objectives.conftest import head_values, model_of, rows

TERMS = list(dict.fromkeys(term for objective in OBJECTIVES.values() for term in objective.terms))
INFINITE, NAN = float("inf"), float("nan")
HEADS = (Queue(queue_size=7), Reconstruction(reconstruction_weight=1.0), Decorrelation(projector_size=8))


# Options


@pytest.mark.parametrize(
    "term, option, value",
    [
        *((Contrast, "temperature", value) for value in (0, -0.1, INFINITE, NAN)),
        *((Reconstruction, "reconstruction_weight", value) for value in (-1, NAN, INFINITE)),
        (Reconstruction, "reconstruction_form", "l1"),
        (SelfContrast, "self_contrast_form", "l1"),
        (AttentionMI, "attention_mi_form", "unit"),
        (Decorrelation, "off_diagonal_weight", INFINITE),
        (Decorrelation, "projector_size", 0),
        *((Queue, "momentum_decay", value) for value in (0, 1)),
        *((Queue, "momentum_dropout", value) for value in (1, -0.1)),
    ],
)
def test_invalid_option_values_are_rejected(term, option, value):
    with raises_usage(option=option):
        term(**{option: value})


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.name)
def test_defaults_and_choices_of_a_term_are_valid(term):
    """If the term has a weight, the weight is its first option and 0 by default."""
    names = [declared.name for declared in fields(term)]
    assert term().strength == (0 if term.weight else 1) and term.weight in (None, names[0])
    for declared in fields(term):
        assert declared.metadata["help"]
        for choice in declared.metadata.get("choices", ()):
            assert getattr(term(**{declared.name: choice}), declared.name) == choice
    assert {*term.fixed} <= {*names}
    assert term.paper is None or list((ROOT / "informin/publishing/templates/citations").glob(f"{term.paper}.*"))


def test_names_and_options_of_terms_are_unique():
    assert max(Counter(term.name for term in TERMS).values()) == 1
    options = [declared.name for term in TERMS for declared in fields(term)]
    assert max(Counter(options).values()) == 1
    assert not {*options} & {declared.name for declared in fields(TrainingArguments)}


def test_options_of_a_user_defined_term_are_checked():
    @dataclass
    class Spread(Term):
        name = "spread"
        title = "spread"
        weight = "spread_weight"
        spread_weight: float = option(0, "help")
        spread_form: str | None = option(None, "help", choices=(None, "a", "b"))
        spread_powers: list | None = option(None, "help")

        def check(self):
            check_value(self.spread_powers != [2, 3], "spread_powers", self.spread_powers, "other powers")

    assert Spread(0.5, "b", [1]).strength == 0.5 and Spread().head(None) is None and Spread().loss(None) == {}
    for name, value in (("spread_powers", [2, 3]), ("spread_form", "c"), ("spread_weight", -2)):
        with raises_usage(option=name):
            Spread(**{name: value})


def test_hyperparameters_fall_back_to_the_base_model_then_to_bert():
    bert, roberta = PaperRow("b", 1, 1.0, {"x": 1}), PaperRow("r", 2, 2.0)
    large, objective = PaperRow("l", 3, 3.0), Objective("toy", (), {("bert", 768): bert})
    assert [objective.row(*key) for key in (("bert", 1024), ("roberta", 768), ("other", 5))] == [bert] * 3
    objective = Objective("toy", (), {("bert", 768): bert, ("roberta", 768): roberta, ("roberta", 1024): large})
    assert [objective.row("roberta", width).name for width in (1024, 768, 32)] == ["l", "r", "r"]
    assert objective.defaults == {"x": 1}
    assert Objective("toy", ()).row("bert", 768) is None and Objective("toy", ()).defaults == {}


# Heads


def test_heads_are_added_to_the_model_in_the_order_of_the_terms(encoder):
    model = model_of(encoder)
    fill_heads(model, HEADS)
    assert list(model.heads) == ["queue", "decorrelation"]
    values = head_values(model, rows(encoder))
    assert list(values) == ["queue", "decorrelation"] and values["decorrelation"][0].shape == (6, 8)
    fill_heads(model, HEADS[::-1])
    assert list(model.heads) == ["decorrelation", "queue"]


def test_heads_of_an_earlier_training_are_removed(encoder):
    model = model_of(encoder)
    fill_heads(model, HEADS)
    before = model.heads["queue"]
    before.embeddings.add_(1)
    fill_heads(model, (Queue(queue_size=7),))
    assert list(model.heads) == ["queue"] and model.heads["queue"] is not before
    assert not model.heads["queue"].embeddings.any()
    fill_heads(model, (Contrast(),))
    assert not model.heads and not [name for name in model.state_dict() if name.startswith("heads.")]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_published_hyperparameters_are_options_of_the_objective(objective):
    """Each option belongs to one of the objective's terms, to the views or to the optimizer."""
    declared = {declared.name for term in OBJECTIVES[objective].terms for declared in fields(term)}
    for row in OBJECTIVES[objective].rows.values():
        assert row.options.keys() - declared <= {"view_dropout", "warmup_steps"}, row.name
        assert row.batch_size > 1 and 0 < row.learning_rate < 1e-3
