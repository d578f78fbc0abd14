"""Measure the training speed."""

import time

import torch
from transformers import TrainerCallback


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
