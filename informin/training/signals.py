"""Ctrl-C, SIGTERM and a closed terminal: finish the step or leave the evaluation, save a checkpoint, stop."""

import os
import signal
import subprocess
import sys
import time

from transformers import TrainerCallback

from informin.distributed import any_process
from informin.interrupts import SAME, heeded_signals, silence, terminals

LAUNCHED = ("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION")  # set by torchrun, and by accelerate launch
# Prints its argument when the process with the number before it has ended, or after half a minute.
LAST_WORD = """
import os, sys, time
end = time.monotonic() + 30
def lives(pid):
    try: os.kill(pid, 0)
    except ProcessLookupError: return False
    return True
while time.monotonic() < end and lives(int(sys.argv[1])): time.sleep(0.02)
print(sys.argv[2], flush=True)
"""


class EvaluationLeft(Exception):
    """A run leaves the evaluation that it is in, to save a checkpoint and stop."""


class StopOnSignal(TrainerCallback):
    """Within its `with` block, the first signal ends training after the running step, with a checkpoint.

    An evaluation is left after the running batch: what goes on from the checkpoint evaluates first. A second signal
    has its usual effect. Over several processes all stop at the same step, whichever got the signal. What the process
    was told to ignore, as by nohup, it goes on ignoring.

    Attributes:
        received: the signal's number, or None.
    """

    def __init__(self):
        self.received: int | None = None

    def __enter__(self):
        self._terminals = terminals()
        self._previous = {number: signal.signal(number, self._handle) for number in heeded_signals()}
        return self

    def __exit__(self, *_):
        self._restore()

    def _restore(self):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number, _frame):
        if self.received:  # torchrun hands on what the terminal sent to all: a moment later it is the same signal
            if not launched() or time.monotonic() > self._first + SAME:
                self._restore()
                signal.raise_signal(number)
            return
        self.received, self._first = number, time.monotonic()
        if number == getattr(signal, "SIGHUP", None):
            silence(self._terminals)

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
        """Whether any process got a signal."""
        if any_process(bool(self.received)):
            self.received = self.received or signal.SIGTERM
        return bool(self.received)


def launched() -> bool:
    """Whether torchrun or accelerate launch started this process."""
    return any(name in os.environ for name in LAUNCHED)


def started_again() -> bool:
    """Whether torchrun started this process in the place of one that died, or of its fellow (`--max_restarts`)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def last_word(text: str) -> None:
    """Prints how a run ended; under a launcher, which ends with a traceback of its own, after that."""
    if not launched():
        print(text, flush=True)
        return
    sys.stdout.flush()
    subprocess.Popen([sys.executable, "-c", LAST_WORD, str(os.getppid()), text], start_new_session=True)
