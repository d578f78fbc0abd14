"""Handle Ctrl-C, SIGTERM, a closed terminal and SIGUSR1: finish the step, save a checkpoint, and stop."""

import os
import signal
import sys
from collections.abc import Iterable

from transformers import TrainerCallback

from informin.distributed import any_process
from informin.program import SIGNALS

LAUNCHED = ("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION")  # set by torchrun and accelerate launch


class EvaluationLeft(Exception):
    """Ends the current evaluation, so that the run can save a checkpoint and stop."""


class StopOnSignal(TrainerCallback):
    """Stops training with a checkpoint after the current step if a signal arrives within its `with` block.

    An evaluation ends after the current batch; the resumed run evaluates first. A second signal has its usual effect;
    under a launcher, the third, because torchrun forwards the signal that the terminal has sent to every process, and
    it may do so late. All processes stop at the same step, whichever received the signal. Signals that the process was
    started to ignore, as by nohup, stay ignored.

    Attributes:
        received: Number of the signal, or None.
    """

    def __init__(self):
        self.received: int | None = None
        self._may_be_forwarded = is_launched()  # the next signal, if one was received

    def __enter__(self):
        handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._previous = {number: signal.signal(number, self._handle) for number in handled}
        return self

    def __exit__(self, *_):
        self._restore()

    def _restore(self):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number, _frame):
        if self.received and not self._may_be_forwarded:
            self._restore()
            signal.raise_signal(number)
        elif self.received:
            self._may_be_forwarded = False
        else:
            self.received = number
            if number == getattr(signal, "SIGHUP", None):
                _silence_terminals()

    def on_step_end(self, args, state, control, **kwargs):
        if self._agree():
            control.should_save = control.should_training_stop = True

    on_evaluate = on_step_end

    def on_save(self, args, state, control, **kwargs):
        control.should_training_stop |= self._agree()

    def on_prediction_step(self, args, state, control, **kwargs):
        if self.received:
            raise EvaluationLeft

    def _agree(self) -> bool:
        """Return whether any process received a signal."""
        if any_process(bool(self.received)):
            self.received = self.received or signal.SIGTERM
        return bool(self.received)


def _silence_terminals() -> None:
    """Redirect stdout and stderr to /dev/null if they are terminals: writing to a closed one raises an error."""
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None and not stream.closed and stream.isatty():
            with open(os.devnull, "w") as null:
                os.dup2(null.fileno(), stream.fileno())


def is_stopped(callbacks: Iterable[TrainerCallback]) -> bool:
    """Return whether a signal stopped a run with these callbacks."""
    return any(isinstance(one, StopOnSignal) and bool(one.received) for one in callbacks)


def is_launched() -> bool:
    """Return whether torchrun or accelerate launch started this process."""
    return any(name in os.environ for name in LAUNCHED)


def is_restarted() -> bool:
    """Return whether torchrun restarted the processes after one of them died (`--max_restarts`)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
