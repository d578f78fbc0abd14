"""Turn Ctrl-C, SIGTERM and a closed terminal into one exception, so that `with` blocks clean up."""

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
SAME = 1.0  # seconds: a launcher forwards a signal that the terminal has already sent to every process


class Interrupted(KeyboardInterrupt):
    """A signal that ends the program. Libraries treat it as Ctrl-C.

    Attributes:
        number: Number of the signal.
        what: What was interrupted; see `during`.
        kept: What is on disk now, as a sentence; see `during`.
    """

    what = kept = ""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number

    def line(self, kept: str = "") -> str:
        """Return the message: the signal unless it is Ctrl-C, what was interrupted, and what is on disk."""
        by = "" if self.number == signal.SIGINT else f" by {signal.Signals(self.number).name}"
        return f"Interrupted{by}{self.what and f' during {self.what}'}. {self.kept or kept}".rstrip()


def as_interrupted(error: KeyboardInterrupt) -> Interrupted:
    """Convert a KeyboardInterrupt of Python's own handler to `Interrupted`."""
    return error if isinstance(error, Interrupted) else Interrupted(signal.SIGINT)


@contextmanager
def during(what: str, kept: str = "") -> Iterator[None]:
    """Describe what a signal would interrupt in this block. The innermost description is used.

    Args:
        what: What is interrupted, such as "the export".
        kept: What is on disk then, as a sentence.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        interrupted = as_interrupted(error)
        if not interrupted.what:
            interrupted.what, interrupted.kept = what, kept
        raise interrupted from None


def handled_signals() -> list[int]:
    """Return the signals that this process does not ignore; nohup makes it ignore SIGHUP."""
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def raise_on_signals() -> None:
    """Make signals raise `Interrupted` in the main thread from now on.

    Further signals within a second are ignored, so that they cannot interrupt the cleanup.
    """
    process, screens, last = os.getpid(), terminals(), -inf

    def handle(number, _frame):
        nonlocal last
        if os.getpid() != process:  # a forked worker inherits the handler
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if number == getattr(signal, "SIGHUP", None):
            silence(screens)
        if time.monotonic() > last + SAME:
            last = time.monotonic()
            raise Interrupted(number)

    for number in handled_signals():
        signal.signal(number, handle)


def terminals() -> list[int]:
    """Return the file descriptors of stdout and stderr, if they are terminals."""
    streams = [stream for stream in (sys.__stdout__, sys.__stderr__) if stream is not None and not stream.closed]
    return [stream.fileno() for stream in streams if stream.isatty()]


def silence(descriptors: Sequence[int]) -> None:
    """Redirect file descriptors to /dev/null: writing to a closed terminal raises an error."""
    with open(os.devnull, "w") as null:
        for descriptor in descriptors:
            os.dup2(null.fileno(), descriptor)
