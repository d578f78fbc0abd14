"""Objectives and terms added from outside the package."""

from dataclasses import dataclass

import pytest
import torch

from informin.objectives import OBJECTIVES, Objective, Term
from informin.objectives.terms import Head
from tests.objectives.conftest import logged

seen: list = []


@dataclass
class Spread(Term):
    """Minus the standard deviation of the projections, times the number of steps counted by its head."""

    name = "spread"
    title = "a toy"

    def head(self, model):
        return Counter()

    def loss(self, views):
        seen.append(views)
        means, steps = views.heads["spread"]
        value = -(1 + steps) * means.var(0).mean().sqrt()
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
    """It has a head, and is combined with an existing term, which is off."""
    trainer = build(objective="toy", gradient_accumulation_steps=2)
    trainer.train()
    terms = logged(trainer, "terms/spread")
    assert logged(trainer, "loss") == pytest.approx(terms, rel=1e-5) and len(terms) == 3
    lengths = [float(views.mask.sum(1)[0]) for views in seen]
    assert logged(trainer, "length") == [sum(pair) / 2 for pair in zip(lengths[::2], lengths[1::2])]
    assert [views.heads["spread"][1].item() for views in seen] == [0, 0, 1, 1, 2, 2]
    for views in seen:
        means, _ = views.heads["spread"]
        assert means.shape == (32, 32) and torch.equal(means, torch.cat([views.z1, views.z2]))
        assert views.maps1 is views.maps2 is views.lm_losses is None
    spreads = [-views.heads["spread"][0].var(0).mean().sqrt().item() for views in seen]
    assert terms == pytest.approx([step * sum(spreads[2 * step - 2 : 2 * step]) / 2 for step in (1, 2, 3)], rel=1e-5)
    assert trainer.args.objective_options == dict(objective="toy")
