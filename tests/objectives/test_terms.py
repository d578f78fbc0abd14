"""What every term shares: its options and their checks, its weight, and the heads that terms put into a model."""

from collections import Counter
from dataclasses import dataclass, fields

import pytest
from transformers import TrainingArguments

from informin.errors import UsageError
from informin.objectives import OBJECTIVES, Term
from informin.objectives.attention_mi import AttentionMI
from informin.objectives.contrast import Contrast
from informin.objectives.decorrelation import Decorrelation, SelfContrast
from informin.objectives.masked_lm import MaskedLM
from informin.objectives.queue import Queue
from informin.objectives.reconstruction import Reconstruction
from informin.objectives.terms import Objective, PaperRow, fill_heads, option, require
from informin.training.defaults import terms
from tests.conftest import ROOT
from tests.objectives.conftest import head_values, model_of, rows

INFINITE, NAN = float("inf"), float("nan")
HEADS = (Queue(queue_size=7), Reconstruction(reconstruction_weight=1.0), Decorrelation(projector_size=8))


# Options


@pytest.mark.parametrize(
    "term, options, message",
    [
        (Contrast, dict(temperature=0), r"`temperature` is 0; needed a number above 0 \(the papers use 0.05\)\.$"),
        (Contrast, dict(temperature=-0.1), "`temperature` is -0.1; needed a number above 0"),
        (Contrast, dict(temperature=INFINITE), "`temperature` is inf; needed a number above 0"),
        (Contrast, dict(temperature=NAN), "`temperature` is nan; needed a number above 0"),
        (Reconstruction, dict(reconstruction_weight=-1), r"`reconstruction_weight` is -1; needed 0 or more \(0 turns"),
        (Reconstruction, dict(reconstruction_weight=NAN), "`reconstruction_weight` is nan; needed 0 or more"),
        (Reconstruction, dict(reconstruction_weight=INFINITE), "`reconstruction_weight` is inf; needed 0 or more"),
        (Reconstruction, dict(reconstruction_form="l1"), "`reconstruction_form` is l1; needed one of: squared_l2"),
        (SelfContrast, dict(self_contrast_form="l1"), r"`self_contrast_form` is l1; needed one of: paper, ref"),
        (SelfContrast, dict(self_contrast_weight=-0.5), "`self_contrast_weight` is -0.5; needed 0 or more"),
        (
            AttentionMI,
            dict(attention_mi_form="squared_l2"),
            r"`attention_mi_form` is squared_l2; needed one of: paper, reference\.$",
        ),
        (AttentionMI, dict(attention_mi_weight=-1e-3), "`attention_mi_weight` is -0.001; needed 0 or more"),
        (Decorrelation, dict(decorrelation_weight=-1), "`decorrelation_weight` is -1; needed 0 or more"),
        (Decorrelation, dict(off_diagonal_weight=-1), "`off_diagonal_weight` is -1; needed 0 or more"),
        (Decorrelation, dict(off_diagonal_weight=INFINITE), "`off_diagonal_weight` is inf; needed 0 or more"),
        (Decorrelation, dict(projector_size=0), r"`projector_size` is 0; needed 1 or more \(the paper uses 4096\)\.$"),
        (MaskedLM, dict(mlm_weight=-0.1), "`mlm_weight` is -0.1; needed 0 or more"),
        (MaskedLM, dict(mlm_probability=0), "`mlm_probability` is 0; needed a share between 0 and 1"),
        (MaskedLM, dict(mlm_probability=1), "`mlm_probability` is 1; needed a share between 0 and 1"),
        (Queue, dict(queue_size=-1), "`queue_size` is -1; needed 0 or more"),
        (Queue, dict(momentum_decay=0), "`momentum_decay` is 0; needed a share between 0 and 1"),
        (Queue, dict(momentum_decay=1), "`momentum_decay` is 1; needed a share between 0 and 1"),
        (Queue, dict(momentum_dropout=1), "`momentum_dropout` is 1; needed 0 or more, and below 1"),
        (Queue, dict(momentum_dropout=-0.1), "`momentum_dropout` is -0.1; needed 0 or more, and below 1"),
    ],
    ids=lambda value: ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_options_that_cannot_be_are_refused(term, options, message):
    with pytest.raises(UsageError, match=f"^{message}"):
        term(**options)


@pytest.mark.parametrize("term", terms(), ids=lambda term: term.name)
def test_a_terms_defaults_and_choices_can_be(term):
    """Its weight, where it has one, stands first and is off."""
    names = [own.name for own in fields(term)]
    assert term().strength == (0 if term.weight else 1) and term.weight in (None, names[0])
    for own in fields(term):
        assert own.metadata["help"]
        for choice in own.metadata.get("choices", ()):
            assert getattr(term(**{own.name: choice}), own.name) == choice
    assert {*term.fixed} <= {*names}
    assert term.paper is None or list((ROOT / "informin/publishing/templates/citations").glob(f"{term.paper}.*"))


def test_no_two_terms_share_a_name_or_an_option_nor_is_one_trainers():
    assert max(Counter(term.name for term in terms()).values()) == 1
    options = [own.name for term in terms() for own in fields(term)]
    assert max(Counter(options).values()) == 1
    assert not {*options} & {own.name for own in fields(TrainingArguments)}


def test_a_check_and_choices_of_a_term_from_outside():
    @dataclass
    class Spread(Term):
        name = "spread"
        title = "spread"
        weight = "spread_weight"
        spread_weight: float = option(0, "help")
        spread_form: str | None = option(None, "help", choices=(None, "a", "b"))
        spread_powers: list | None = option(None, "help")

        def check(self):
            require(self.spread_powers != [2, 3], "spread_powers", self.spread_powers, "others")

    assert Spread(0.5, "b", [1]).strength == 0.5 and Spread().head(None) is None and Spread().loss(None) == {}
    for options, message in (
        (dict(spread_powers=[2, 3]), "`spread_powers` is 2 3; needed others."),
        (dict(spread_form="c"), "`spread_form` is c; needed one of: None, a, b."),
        (dict(spread_weight=-2), "`spread_weight` is -2; needed 0 or more (0 turns the term off)."),
    ):
        with pytest.raises(UsageError) as caught:
            Spread(**options)
        assert str(caught.value) == message


def test_a_row_is_the_encoders_own_else_its_architectures_base_else_berts():
    bert, roberta = PaperRow("b", 1, 1.0, {"x": 1}), PaperRow("r", 2, 2.0)
    large, objective = PaperRow("l", 3, 3.0), Objective("toy", (), {("bert", 768): bert})
    assert [objective.row(*key) for key in (("bert", 1024), ("roberta", 768), ("other", 5))] == [bert] * 3
    objective = Objective("toy", (), {("bert", 768): bert, ("roberta", 768): roberta, ("roberta", 1024): large})
    assert [objective.row("roberta", width).name for width in (1024, 768, 32)] == ["l", "r", "r"]
    assert objective.defaults == {"x": 1}
    assert Objective("toy", ()).row("bert", 768) is None and Objective("toy", ()).defaults == {}


# Heads


def test_the_heads_of_the_terms_are_put_into_the_model_in_their_order(encoder):
    model = model_of(encoder)
    fill_heads(model, HEADS)
    assert list(model.heads) == ["queue", "decorrelation"]
    values = head_values(model, rows(encoder))
    assert list(values) == ["queue", "decorrelation"] and values["decorrelation"][0].shape == (6, 8)
    fill_heads(model, HEADS[::-1])
    assert list(model.heads) == ["decorrelation", "queue"]


def test_the_heads_of_an_earlier_training_leave_the_model(encoder):
    model = model_of(encoder)
    fill_heads(model, HEADS)
    before = model.heads["queue"]
    before.embeddings.add_(1)
    fill_heads(model, (Queue(queue_size=7),))
    assert list(model.heads) == ["queue"] and model.heads["queue"] is not before
    assert not model.heads["queue"].embeddings.any()
    fill_heads(model, (Contrast(),))
    assert not model.heads and not [name for name in model.state_dict() if name.startswith("heads.")]


OLD = {"queue": ("momentum_encoder", "queue", "queue_ids"), "decorrelation": ("projector",)}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_terms_of_an_objective_read_what_its_rows_set(objective):
    """Each of a row's options is one of its terms', of the views', or of the optimizer's."""
    own = {own.name for term in OBJECTIVES[objective].terms for own in fields(term)}
    for row in OBJECTIVES[objective].rows.values():
        assert row.options.keys() - own <= {"view_dropout", "warmup_steps"}, row.name
        assert row.batch_size > 1 and 0 < row.learning_rate < 1e-3
