"""A loss that is NaN stops training before weights are saved or used."""

from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from informin.errors import NonFiniteLossError
from tests.training.helpers import WeightsAtEvaluation


class Poison(TrainerCallback):
    def __init__(self, after: int):
        self.after = after

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step == self.after:
            with torch.no_grad():
                model.mlp.dense.bias[0] = float("nan")


def test_nan_loss_stops_training_before_the_weights_change(build):
    trainer = build([Poison(after=2)])
    with pytest.raises(NonFiniteLossError, match=r"nan at step 3 \(contrast nan"):
        trainer.train()
    assert trainer.state.global_step == 2


@pytest.mark.parametrize(
    "options, stopped_at",
    [
        ({}, 4),  # before the evaluation
        ({"eval_strategy": "no", "save_strategy": "steps", "save_steps": 2, "load_best_model_at_end": False}, 4),
        ({"eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}, 8),  # before the end
    ],
)
def test_losses_on_a_gpu_are_checked_before_weights_are_saved_or_used(build, options, stopped_at):
    """As on a GPU, training continues for some steps, but neither evaluates nor saves their weights."""
    weights = WeightsAtEvaluation()
    trainer = build([Poison(after=2), weights], max_steps=8, logging_steps=100, **options)
    trainer.loss_watch._checks_each = False
    with pytest.raises(NonFiniteLossError, match=r"nan at step 3 \(contrast nan"):
        trainer.train()
    assert trainer.state.global_step == stopped_at
    assert 4 not in weights.at
    saved = sorted(path.name for path in Path(trainer.args.output_dir).glob("checkpoint-*"))
    assert saved == (["checkpoint-2"] if stopped_at == 4 else [])


def test_losses_on_a_gpu_are_checked_for_a_log_line(build):
    trainer = build([Poison(after=2)], max_steps=8, eval_strategy="no", save_strategy="no", logging_steps=5)
    trainer.loss_watch._checks_each = False
    with pytest.raises(NonFiniteLossError, match=r"nan at step 3 \(contrast nan"):
        trainer.train()
    assert trainer.state.global_step == 5
