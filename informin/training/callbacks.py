"""What happens around the steps of a run."""

import torch
from transformers import TrainerCallback

from informin.distributed import rank, world_size
from informin.views.stacking import mask_seed


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
            torch.manual_seed(mask_seed(args.seed, rank()))
