"""Ctrl-C and SIGTERM: finish the step, save a checkpoint, stop."""

import signal

import torch
from transformers import TrainerCallback

from informin.distributed import sum_over_processes, world_size

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopOnSignal(TrainerCallback):
    """Within its `with` block, the first signal ends training after the running step, with a checkpoint.

    A second one has its usual effect. Over several processes all stop at the same step, whichever got the signal.

    Attributes:
        received: the signal's number, or None.
    """

    def __init__(self):
        self.received: int | None = None

    def __enter__(self):
        self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_):
        self._restore()

    def _restore(self):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number, _frame):
        self.received = number
        self._restore()

    def on_step_end(self, args, state, control, **kwargs):
        if world_size() > 1:
            received = sum_over_processes(torch.tensor(int(self.received or 0), device=args.device)).item()
            self.received = self.received or (signal.SIGTERM if received else None)
        if self.received:
            control.should_save = control.should_training_stop = True
