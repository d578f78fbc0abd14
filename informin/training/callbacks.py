"""What happens around the steps of a run."""

import torch
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from informin.distributed import rank, world_size
from informin.views.stacking import step_seed


class AfterStep(TrainerCallback):
    """Heads with a state of their own follow each optimizer step."""

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        for head in model.heads.values():
            head.after_step(model)


class SeedProcesses(TrainerCallback):
    """Each process drops what it drops by a seed of its own.

    Trainer seeds all alike, so that they would draw the same dropout masks for different sentences. The order of the
    sentences was drawn before, by one seed. Checkpoints hold the random state of every process.
    """

    def on_train_begin(self, args, state, control, **kwargs):
        if world_size() > 1:
            torch.manual_seed(step_seed(args.seed, rank()))


class EpochStart(TrainerCallback, ExportableState):
    """Where the running epoch started, kept in checkpoints: the length of a stream is not known beforehand.

    Attributes:
        epoch: its number, from 0.
        step: the number of optimizer steps before it.
    """

    def __init__(self, epoch: int = 0, step: int = 0):
        self.epoch, self.step = epoch, step

    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step == 0:  # a trainer may train twice
            self.epoch, self.step = 0, 0

    def on_epoch_end(self, args, state, control, **kwargs):
        if not control.should_training_stop:  # else the epoch may have more, for a run that resumes
            self.epoch, self.step = self.epoch + 1, state.global_step

    def state(self) -> dict:
        return {"args": {"epoch": self.epoch, "step": self.step}, "attributes": {}}
