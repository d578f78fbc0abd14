"""Trainer callbacks for steps, random seeds and epochs."""

import torch
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from informin.distributed import rank, world_size
from informin.views.stacking import step_seed


class AfterStep(TrainerCallback):
    """Calls `Head.after_step` after each optimizer step."""

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        for head in model.heads.values():
            head.after_step(model)


class LogShortRuns(TrainerCallback):
    """Logs the loss four times in a run that is too short for the default of `logging_steps`."""

    default, times = 25, 4

    def on_train_begin(self, args, state, control, **kwargs):
        if args.logging_steps == self.default and state.max_steps < self.default * self.times:
            state.logging_steps = max(1, state.max_steps // self.times)


class SeedProcesses(TrainerCallback):
    """Gives each process its own seed for dropout.

    Trainer uses the same seed in all processes, so they would use the same dropout masks for different sentences. The
    order of the sentences is already set at this point. Checkpoints hold the random state of every process.
    """

    def on_train_begin(self, args, state, control, **kwargs):
        if world_size() > 1:
            torch.manual_seed(step_seed(args.seed, rank()))


class EpochStart(TrainerCallback, ExportableState):
    """Saves in checkpoints where the current epoch began, because the length of a stream is unknown.

    Attributes:
        epoch: Index of the epoch.
        step: Number of optimizer steps before it.
    """

    def __init__(self, epoch: int = 0, step: int = 0):
        self.epoch, self.step = epoch, step

    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step == 0:  # `train` may be called twice
            self.epoch, self.step = 0, 0

    def on_epoch_end(self, args, state, control, **kwargs):
        if not control.should_training_stop:  # otherwise a resumed run may continue this epoch
            self.epoch, self.step = self.epoch + 1, state.global_step

    def state(self) -> dict:
        return {"args": {"epoch": self.epoch, "step": self.step}, "attributes": {}}
