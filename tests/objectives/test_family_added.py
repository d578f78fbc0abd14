"""Objectives and terms added from outside the package."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from informin.objectives import OBJECTIVES, Objective, Term
from informin.objectives.terms import Head, option, require
from informin.training.options import arguments_class
from tests.conftest import raises_usage
from tests.objectives.conftest import logged, model_of
from tests.objectives.family_helpers import MICSE, seen
from trainer_informin import InforMinTrainer


@dataclass
class Spread(Term):
    """Minus the variance of the projections to a power, times the number of steps counted by its head."""

    name = "spread"
    title = "a toy"
    weight = "spread_weight"

    spread_weight: float = option(0, "Of the spread.")
    spread_power: float = option(1.0, "Its power.")

    def check(self):
        require(self.spread_power > 0, "spread_power", self.spread_power, "a number above 0")

    def head(self, model):
        return Counter()

    def loss(self, views):
        seen.append(views)
        means, steps = views.heads["spread"]
        value = -(1 + steps) * means.var(0).mean() ** self.spread_power
        return {"spread": value, "length": views.mask.sum(1).float()[0]}


class Counter(Head):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, model, projection, input_ids, attention_mask, sentence_ids, gather):
        return gather(projection), self.steps.clone()

    def after_step(self, model):
        self.steps += 1


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "toy", Objective("a toy", (Spread, *OBJECTIVES["simcse"].terms[-1:])))
    seen.clear()


def test_objective_can_be_added_with_one_class_and_one_line(build, toy):
    """It has options and a head, and is combined with an existing term."""
    trainer = build(objective="toy", spread_weight=2.0, spread_power=0.5, gradient_accumulation_steps=2)
    trainer.train()
    terms = logged(trainer, "terms/spread")
    assert logged(trainer, "loss") == pytest.approx([2 * term for term in terms], rel=1e-5) and len(terms) == 3
    lengths = [float(views.mask.sum(1)[0]) for views in seen]
    assert logged(trainer, "length") == [sum(pair) / 2 for pair in zip(lengths[::2], lengths[1::2])]
    assert [views.heads["spread"][1].item() for views in seen] == [0, 0, 1, 1, 2, 2]
    for views in seen:
        means, _ = views.heads["spread"]
        assert means.shape == (32, 32) and torch.equal(means, torch.cat([views.z1, views.z2]))
        assert views.maps1 is views.maps2 is views.lm_losses is None
    spreads = [-views.heads["spread"][0].var(0).mean().sqrt().item() for views in seen]
    assert terms == pytest.approx([step * sum(spreads[2 * step - 2 : 2 * step]) / 2 for step in (1, 2, 3)], rel=1e-5)
    assert trainer.args.objective_options == dict(objective="toy", spread_weight=2.0, spread_power=0.5)


@pytest.mark.parametrize(
    "options, option, found, fix",
    [
        (
            dict(objective="toy", spread_weight=1, attention_mi_weight=1.0),
            "attention_mi_weight",
            "1.0",
            "spread_weight",
        ),
        (
            *(dict(objective="toy", spread_power=2.0), "spread_power"),
            *("2.0 has no effect", "with `spread_weight` above 0 also spread_power"),
        ),
        (dict(objective="toy", spread_weight=1, spread_power=-1), "spread_power", "is -1", ""),
        (dict(objective="toy"), "objective", "toy has no term with a weight above 0", ""),
        (dict(objective="simcse", spread_weight=1), "spread_weight", "1 has no effect with `objective` simcse", ""),
    ],
    ids=["another-terms", "off", "check", "nothing", "another-objective"],
)
def test_options_of_an_added_objective_are_checked(toy, tmp_path, options, option, found, fix):
    with raises_usage(option=option, found=found, fix=fix):
        arguments_class()(str(tmp_path), **options)


def test_term_can_only_use_its_declared_options(build, monkeypatch):

    class Greedy(Term):
        name = title = "greedy"

        def loss(self, views):
            return {"greedy": views.z1.sum() * self.temperature}

    monkeypatch.setitem(OBJECTIVES, "toy", Objective("a toy", (Greedy,)))
    with pytest.raises(AttributeError, match="temperature"):
        build(objective="toy").train()


def test_loaded_model_resumes_with_its_heads(build, encoder):
    """The heads of terms come from the options, not from the model's configuration."""

    def trainer():
        given = build(save_strategy="steps", save_steps=2, max_steps=4, **MICSE)
        rows, tokenizer = given.train_dataset, given.processing_class
        return InforMinTrainer(model_of(encoder), given.args, rows, processing_class=tokenizer)

    through = trainer()
    through.train()
    shutil.rmtree(Path(through.args.output_dir, "checkpoint-4"))
    resumed = trainer()
    resumed.train(resume_from_checkpoint=True)
    expected = through.model.state_dict()
    assert resumed.state.global_step == 4 and resumed.model.state_dict().keys() == expected.keys()
    assert [k for k, v in resumed.model.state_dict().items() if not torch.equal(v, expected[k])] == []
