"""Features common to all terms: option checks, weights, and heads."""

from collections import Counter
from dataclasses import dataclass, fields

import pytest
from transformers import TrainingArguments

from informin.objectives import OBJECTIVES, Term
from informin.objectives.attention_mi import AttentionMI
from informin.objectives.contrast import Contrast
from informin.objectives.decorrelation import Decorrelation, SelfContrast
from informin.objectives.masked_lm import MaskedLM
from informin.objectives.queue import Queue
from informin.objectives.reconstruction import Reconstruction
from informin.objectives.terms import Objective, PaperRow, fill_heads, option, require
from informin.training.term_fields import terms
from tests.conftest import ROOT, raises_usage
from tests.objectives.conftest import head_values, model_of, rows

INFINITE, NAN = float("inf"), float("nan")
HEADS = (Queue(queue_size=7), Reconstruction(reconstruction_weight=1.0), Decorrelation(projector_size=8))


# Options


@pytest.mark.parametrize(
    "term, option, value, needed",
    [
        (Contrast, "temperature", 0, "a number above 0 (the papers use 0.05)"),
        (Contrast, "temperature", -0.1, "a number above 0"),
        (Contrast, "temperature", INFINITE, "a number above 0"),
        (Contrast, "temperature", NAN, "a number above 0"),
        (Reconstruction, "reconstruction_weight", -1, "0 or more (0 turns the term off)"),
        (Reconstruction, "reconstruction_weight", NAN, "0 or more"),
        (Reconstruction, "reconstruction_weight", INFINITE, "0 or more"),
        (Reconstruction, "reconstruction_form", "l1", "one of: squared_l2"),
        (SelfContrast, "self_contrast_form", "l1", "one of: paper, reference"),
        (SelfContrast, "self_contrast_weight", -0.5, "0 or more"),
        (AttentionMI, "attention_mi_form", "squared_l2", "one of: paper, reference"),
        (AttentionMI, "attention_mi_weight", -1e-3, "0 or more"),
        (Decorrelation, "decorrelation_weight", -1, "0 or more"),
        (Decorrelation, "off_diagonal_weight", -1, "0 or more"),
        (Decorrelation, "off_diagonal_weight", INFINITE, "0 or more"),
        (Decorrelation, "projector_size", 0, "1 or more (the paper uses 4096)"),
        (MaskedLM, "mlm_weight", -0.1, "0 or more"),
        (MaskedLM, "mlm_probability", 0, "a fraction between 0 and 1"),
        (MaskedLM, "mlm_probability", 1, "a fraction between 0 and 1"),
        (Queue, "queue_size", -1, "0 or more"),
        (Queue, "momentum_decay", 0, "a fraction between 0 and 1"),
        (Queue, "momentum_decay", 1, "a fraction between 0 and 1"),
        (Queue, "momentum_dropout", 1, "0 or more, and below 1"),
        (Queue, "momentum_dropout", -0.1, "0 or more, and below 1"),
    ],
)
def test_invalid_option_values_are_rejected(term, option, value, needed):
    with raises_usage(option=option, found=f"is {value}", needed=needed):
        term(**{option: value})


@pytest.mark.parametrize("term", terms(), ids=lambda term: term.name)
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
    assert max(Counter(term.name for term in terms()).values()) == 1
    options = [declared.name for term in terms() for declared in fields(term)]
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
            require(self.spread_powers != [2, 3], "spread_powers", self.spread_powers, "other powers")

    assert Spread(0.5, "b", [1]).strength == 0.5 and Spread().head(None) is None and Spread().loss(None) == {}
    for name, value, found, needed in (
        ("spread_powers", [2, 3], "is 2 3", "other powers"),
        ("spread_form", "c", "is c", "one of: None, a, b"),
        ("spread_weight", -2, "is -2", "0 or more (0 turns the term off)"),
    ):
        with raises_usage(option=name, found=found, needed=needed):
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
    known = {declared.name for term in OBJECTIVES[objective].terms for declared in fields(term)}
    for row in OBJECTIVES[objective].rows.values():
        assert row.options.keys() - known <= {"view_dropout", "warmup_steps"}, row.name
        assert row.batch_size > 1 and 0 < row.learning_rate < 1e-3
