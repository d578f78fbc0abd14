"""Trainer callbacks for steps, random seeds, epochs, the log of short runs and the training speed."""

import time

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

    def on_step_end(self, args, state, control, **kwargs):
        by_default = args.logging_strategy == "steps" and args.logging_steps == self.default
        if by_default and state.max_steps < self.default * self.times:
            is_first = state.global_step == 1 and args.logging_first_step
            every = max(1, state.max_steps // self.times)
            control.should_log = is_first or state.global_step % every == 0


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


class Throughput(TrainerCallback):
    """Measures the time of the training steps, without evaluation and saving.

    Attributes:
        sentences_per_second: Sentences per second over all processes, for the last call of `train`. None before its
            end, and if it took no step.
    """

    sentences_per_second: float | None = None
    _mark = _aside = 0.0  # an evaluation may come before any training

    def on_train_begin(self, args, state, control, **kwargs):
        self.sentences_per_second = None
        self._batches = 0
        self._start = self._mark = time.perf_counter()
        self._aside = 0.0

    def on_substep_end(self, args, state, control, **kwargs):
        self._batches += 1

    def on_step_end(self, args, state, control, **kwargs):
        self._batches += 1
        if args.device.type == "cuda" and (
            control.should_evaluate or control.should_save or control.should_training_stop
        ):
            torch.cuda.synchronize(args.device)  # a GPU is behind the Python code by a step or more
        self._mark = time.perf_counter()

    def on_evaluate(self, args, state, control, **kwargs):
        now = time.perf_counter()
        self._aside += now - self._mark
        self._mark = now

    on_save = on_evaluate

    def on_train_end(self, args, state, control, **kwargs):
        if self._batches:
            seconds = self._mark - self._start - self._aside
            sentences = self._batches * args.per_device_train_batch_size * args.world_size
            self.sentences_per_second = sentences / seconds
