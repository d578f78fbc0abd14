"""Terms of the user, from a file outside the package: training, logs, heads, the record, the card, and resuming."""

import importlib.util
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerCallback

from informin.objectives import AttentionMI, Contrast, Head, MaskedLM, Reconstruction
from informin.publishing.card import write_card
from tests.conftest import FOUR_STEPS, make_sentences, raises_usage
from tests.training.helpers import assert_same, logged, trained, weights_of
from trainer_informin import InforMinTrainer, InforMinTrainingArguments

FILE = '''
"""A loss of the user."""

from dataclasses import dataclass

from informin import Term


@dataclass
class NearUnitLength(Term):
    """Keeps the projections near unit length."""

    weight: float = 0.1
    length: float = 1.0

    def loss(self, views):
        return (views.z1.norm(dim=-1) - self.length).square().mean()
'''
SENTENCES = make_sentences(64)


@pytest.fixture
def own(tmp_path):
    """The module of the user."""
    path = tmp_path / "own_loss.py"
    path.write_text(FILE)
    spec = importlib.util.spec_from_file_location("own_loss", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["own_loss"] = module  # dataclasses look up the module of a class
    spec.loader.exec_module(module)
    yield module
    del sys.modules["own_loss"]


def args_in(folder: Path, **options) -> InforMinTrainingArguments:
    how = FOUR_STEPS | dict(eval_strategy="no", warmup_steps=0, save_steps=2, logging_steps=1) | options
    return InforMinTrainingArguments(str(folder), **how)


def test_a_term_of_the_user_is_trained_logged_recorded_and_resumed(bert, own, tmp_path):
    objective = [Contrast(temperature=0.1), Reconstruction(weight=0.4), own.NearUnitLength(length=2.0)]
    args = args_in(tmp_path / "run")
    trainer = trained(str(bert), args, SENTENCES, objective=objective)
    assert trainer.args is args, "nothing had to be filled in"
    for entry in [entry for entry in trainer.state.log_history if "loss" in entry]:
        total = entry["terms/contrast"] + 0.4 * entry["terms/reconstruction"] + 0.1 * entry["terms/near_unit_length"]
        assert entry["loss"] == pytest.approx(total, rel=1e-5)
    trainer.export(report=False)
    record = json.loads((tmp_path / "run/training.json").read_text())
    assert [term["name"] for term in record["objective"]["terms"]][-1] == "near_unit_length"
    assert record["options"]["near_unit_length_weight"] == 0.1 and record["options"]["length"] == 2.0
    write_card(tmp_path / "run")
    assert "near unit length" in (tmp_path / "run/README.md").read_text()
    shutil.rmtree(tmp_path / "run/checkpoint-4")
    again = InforMinTrainer(str(bert), args_in(tmp_path / "run"), SENTENCES, objective=objective)
    again.train("last")
    assert_same(weights_of(again), weights_of(trainer))


def test_a_resumed_run_has_the_same_terms(bert, own, tmp_path):
    trained(str(bert), args_in(tmp_path / "run", max_steps=2), SENTENCES, objective=[Contrast(), own.NearUnitLength()])
    for objective in ([Contrast()], [Contrast(), own.NearUnitLength(weight=0.2)]):
        trainer = InforMinTrainer(str(bert), args_in(tmp_path / "run"), SENTENCES, objective=objective)
        with raises_usage(option="resume_from_checkpoint"):
            trainer.train("last")


class Spread:
    """Minus the standard deviation of the projections, and a value to log: not a `Term`."""

    def __init__(self, weight=1.0):
        self.weight = weight
        self.seen = []

    def loss(self, views):
        self.seen.append(views)
        return {"spread": -views.z1.var(0).mean().sqrt(), "length": views.mask.sum(1).float()[0]}


def test_an_object_with_weight_and_loss_is_trained_beside_masked_words(bert, tmp_path):
    term = Spread()
    trainer = trained(str(bert), args_in(tmp_path / "run"), SENTENCES, objective=[term, MaskedLM(weight=0.5)])
    losses = zip(logged(trainer, "terms/spread"), logged(trainer, "terms/mlm"))
    assert logged(trainer, "loss") == pytest.approx([spread + 0.5 * mlm for spread, mlm in losses], rel=1e-5)
    assert logged(trainer, "length") == [float(views.mask.sum(1)[0]) for views in term.seen]
    assert all(views.maps1 is views.row is None and len(views.lm_losses) for views in term.seen)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda views: (views.z1 - views.z2).square().mean(1),
        lambda views: 3.0,
        lambda views: None,
        lambda views: {"length": 3.0},
    ],
    ids=["one per sentence", "float", "None", "float in a dictionary"],
)
def test_a_loss_that_is_not_one_number_is_an_error(bert, tmp_path, wrong):
    term = SimpleNamespace(weight=1.0, loss=wrong, name="mine")
    trainer = InforMinTrainer(str(bert), args_in(tmp_path / "run"), SENTENCES, objective=[Contrast(), term])
    with raises_usage("objective", found="mine"):
        trainer.train()


@pytest.mark.parametrize("weight", ["1", None, [1.0]])
def test_a_weight_that_is_not_a_number_is_an_error(bert, tmp_path, weight):
    term = SimpleNamespace(weight=weight, loss=lambda views: views.z1.mean())
    with raises_usage("objective"):
        InforMinTrainer(str(bert), args_in(tmp_path / "run"), SENTENCES, objective=[Contrast(), term])


def test_a_term_without_gradient_is_logged(bert, tmp_path):
    term = SimpleNamespace(weight=1.0, loss=lambda views: views.z1.detach().norm(), name="length")
    trainer = trained(str(bert), args_in(tmp_path / "run", max_steps=1), SENTENCES, objective=[Contrast(), term])
    assert logged(trainer, "terms/length")


class Counter(Head):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, model, projection, input_ids, attention_mask, sentence_ids, gather):
        return gather(projection), self.steps.clone()

    def after_step(self, model):
        self.steps += 1


def test_a_term_of_the_user_may_have_a_head(bert, own, tmp_path):
    class Counted(own.NearUnitLength):
        def head(self, model):
            return Counter()

        def loss(self, views):
            projection, steps = views.heads["counted"]
            assert torch.equal(projection, torch.cat([views.z1, views.z2]))
            return (1 + steps) * super().loss(views)

    args = args_in(tmp_path / "run", gradient_accumulation_steps=2)
    trainer = trained(str(bert), args, SENTENCES, objective=[Contrast(), Counted()])
    assert trainer.model.heads["counted"].steps == 4 and len(logged(trainer, "terms/counted")) == 4


def test_a_weight_may_change_during_training(bert, tmp_path):
    term = Reconstruction(weight=1.0)

    class Anneal(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            term.weight = 1.0 - state.global_step / 4

    objective = [Contrast(), term]
    trainer = trained(str(bert), args_in(tmp_path / "run"), SENTENCES, objective=objective, callbacks=[Anneal()])
    values = zip(logged(trainer, "terms/contrast"), logged(trainer, "terms/reconstruction"), (1.0, 0.75, 0.5, 0.25))
    assert logged(trainer, "loss") == pytest.approx([one + weight * other for one, other, weight in values], rel=1e-5)


def test_a_model_without_attention_maps_is_refused(bert, tmp_path):
    """transformers returns an empty tuple if the attention function gives no maps."""
    objective = [Contrast(), AttentionMI()]
    trainer = InforMinTrainer(str(bert), args_in(tmp_path / "run"), SENTENCES, objective=objective)
    trainer.model.register_forward_hook(lambda module, args, outputs: replace(outputs, attentions=()))
    with raises_usage(option="attention_mi_weight"):
        trainer.train()
