"""Ctrl-C, SIGTERM and a closed terminal as one exception, so that every `with` block on the way out cleans up."""

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
SAME = 1.0  # seconds: a launcher hands on what the terminal sent to all


class Interrupted(KeyboardInterrupt):
    """A signal that ends the program. Libraries treat it as Ctrl-C.

    Attributes:
        number: of the signal.
        what: it interrupted; see `during`.
        kept: what is on disk now, a sentence; see `during`.
    """

    what = kept = ""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number

    def line(self, kept: str = "") -> str:
        """What to print: the signal, unless it is Ctrl-C, what was interrupted, and what is kept."""
        by = "" if self.number == signal.SIGINT else f" by {signal.Signals(self.number).name}"
        return f"Interrupted{by}{self.what and f' during {self.what}'}. {self.kept or kept}".rstrip()


def as_interrupted(error: KeyboardInterrupt) -> Interrupted:
    """The same, where Python's own handler raised it."""
    return error if isinstance(error, Interrupted) else Interrupted(signal.SIGINT)


@contextmanager
def during(what: str, kept: str = "") -> Iterator[None]:
    """Names what a signal interrupts within the block; the innermost name counts."""
    try:
        yield
    except KeyboardInterrupt as error:
        interrupted = as_interrupted(error)
        if not interrupted.what:
            interrupted.what, interrupted.kept = what, kept
        raise interrupted from None


def heeded_signals() -> list[int]:
    """Those that this process was not told to ignore, as by nohup."""
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def raise_on_signals() -> None:
    """From now on a signal raises `Interrupted` in the main thread.

    The same one again within a second is ignored, so that it cannot cut the cleanup short.
    """
    process, screens, last = os.getpid(), terminals(), -inf

    def handle(number, _frame):
        nonlocal last
        if os.getpid() != process:  # a worker, which inherits the handler
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if number == getattr(signal, "SIGHUP", None):
            silence(screens)
        if time.monotonic() > last + SAME:
            last = time.monotonic()
            raise Interrupted(number)

    for number in heeded_signals():
        signal.signal(number, handle)


def terminals() -> list[int]:
    """The file descriptors of stdout and stderr that are terminals."""
    streams = [stream for stream in (sys.__stdout__, sys.__stderr__) if stream is not None and not stream.closed]
    return [stream.fileno() for stream in streams if stream.isatty()]


def silence(descriptors: Sequence[int]) -> None:
    """Drops what is written there from now on: writing to a closed terminal is an error."""
    with open(os.devnull, "w") as nowhere:
        for descriptor in descriptors:
            os.dup2(nowhere.fileno(), descriptor)
