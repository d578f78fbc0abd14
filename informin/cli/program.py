"""What all commands share: signals as exceptions, exit codes, and what is printed.

Exit codes: 0, 1 for a failure, 2 for wrong options or files, and 128 + the signal's number (130 for Ctrl-C, 143 for
SIGTERM, 141 if whoever reads the output has gone). Imports neither torch nor transformers at module level.
"""

import io
import logging
import os
import re
import select
import shlex
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from math import inf
from typing import NoReturn

from informin.errors import InforMinError, PushError, error_line, escaped, is_wrong_path, one_line
from informin.training.launcher import SIGNALS, check_launcher

READER_GONE = 128 + 13  # what a shell reports for SIGPIPE, as in `informin search ... | head -1`
SAME = 1.0  # seconds: a launcher forwards a signal that the terminal has already sent to every process


class Interrupted(KeyboardInterrupt):
    """A signal that ends the program. Libraries treat it as Ctrl-C.

    Attributes:
        number: Number of the signal.
        kept: A sentence that says what is on disk.
    """

    def __init__(self, number: int, kept: str = ""):
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.kept = kept


@contextmanager
def after_signal(kept: str) -> Iterator[None]:
    """Add a sentence to what is printed after a signal in a `with` block or a decorated function.

    Args:
        kept: Says what is on disk, or how to go on.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        number = error.number if isinstance(error, Interrupted) else signal.SIGINT
        raise Interrupted(number, kept) from error


def run_program(main: Callable[[], int]) -> NoReturn:
    """Run a program and exit with its code. Signals raise `Interrupted`, so that `with` blocks clean up.

    What the encoding of the output cannot express, such as an emoji on a console of Windows, is printed as `?`.
    """
    open_missing_streams()
    raise_on_signals()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")
    code: int | str | None
    try:
        code = main()
    except KeyboardInterrupt as error:
        code = _interrupted(error)
    except SystemExit as error:  # of --help
        code = error.code
    sys.exit(_flushed(code))


def exit_code(function: Callable[[], int | None], options: Collection[str]) -> int:
    """Call a function, print its error in one line, and return the exit code.

    Shows informin's log messages, and only errors from transformers.

    Args:
        function: What the command does.
        options: Names of the command's options, without dashes. If an error names one of them in backticks, it is
            printed as a flag.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(MessageFormatter("%(message)s"))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("informin").setLevel(logging.INFO)
    logging.getLogger("huggingface_hub").propagate = False  # its own handler prints, too
    quiet_transformers()
    try:
        check_launcher()
        return function() or 0
    except InforMinError as error:
        finish = f" Finish with: {_push_command(error.finish)}" if isinstance(error, PushError) else ""
        print_error(f"error: {_with_flags(str(error), options)}{finish}")
        return error.exit_code
    except OSError as error:  # of the disk, or of transformers and huggingface_hub for a model that they cannot load
        if isinstance(error, BrokenPipeError) and _reader_has_gone():
            return READER_GONE
        missing = isinstance(error, FileNotFoundError) and error.filename is not None
        message = f"{error.filename} does not exist. Check the path." if missing else error_line(error)
        print_error(f"error: {one_line(message)}")
        return 2 if is_wrong_path(error) else 1
    except KeyboardInterrupt as error:
        return _interrupted(error)


class MessageFormatter(logging.Formatter):
    """Escapes control characters in messages: names of files may have some, and a terminal would obey them.

    A message of this project is one line. Those of libraries keep their line breaks.
    """

    def format(self, record: logging.LogRecord) -> str:
        is_own = record.name.partition(".")[0] in ("informin", "trainer_informin") and not record.exc_info
        return escaped(super().format(record), "" if is_own else "\n\t")


def quiet_transformers() -> None:
    """Show only errors of transformers, and no progress bars. It is not imported: that takes a second."""
    if "transformers" in sys.modules:
        from transformers.utils import logging as transformers_logging

        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
    elif "huggingface_hub" in sys.modules:  # has read the environment; transformers will ask it
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
    os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


def open_missing_streams() -> None:
    """Open the null device as each standard stream that the caller has closed, as by `>&-`, or that pythonw lacks.

    Otherwise, the next file that is opened gets the stream's number, and with it what libraries print there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def raise_on_signals() -> None:
    """Make the `SIGNALS` raise `Interrupted` in the main thread from now on.

    Further signals within a second are ignored, so that they cannot interrupt the cleanup. Signals that this process
    ignores stay ignored, such as SIGHUP under nohup.
    """
    process = os.getpid()
    last = -inf

    def interrupt(number, _frame):
        nonlocal last
        if os.getpid() != process:  # a forked worker inherits the handler
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if time.monotonic() > last + SAME:
            last = time.monotonic()
            raise Interrupted(number)

    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)


def _interrupted(error: KeyboardInterrupt) -> int:
    """Print what ended the program, in the first process only, and return the exit code."""
    number, kept = (error.number, error.kept) if isinstance(error, Interrupted) else (signal.SIGINT, "")
    if os.environ.get("RANK", "0") == "0":
        by = "" if number == signal.SIGINT else f" by {signal.Signals(number).name}"
        print_error(f"Interrupted{by}. {kept}".rstrip())
    return 128 + number


def _reader_has_gone() -> bool:
    """Return whether the output is a pipe that nobody reads any more. Another pipe may have broken instead."""
    if sys.stdout is None or not hasattr(select, "poll"):
        return False
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), select.POLLOUT)
    except io.UnsupportedOperation:  # not a file
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _flushed(code: int | str | None) -> int | str | None:
    """Write the rest of the output, and return the exit code: another one if it cannot be written."""
    if sys.stdout is None:
        return code
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python tries again when it exits
        if isinstance(error, BrokenPipeError):
            return READER_GONE
        if not code:
            print_error(f"error: The output could not be written ({error_line(error)}).")
        return code or 1
    return code


def print_error(text: str) -> None:
    """Print a line to stderr."""
    with suppress(OSError):  # the terminal may be closed
        print(text, file=sys.stderr, flush=True)


def _with_flags(text: str, options: Collection[str]) -> str:
    """Return the text with `name` replaced by --name for each of the options."""
    return re.sub(r"`(\w+)`", lambda match: f"--{match[1]}" if match[1] in options else match[0], text)


def _push_command(options: dict[str, str | bool]) -> str:
    words = ["informin", "push"]
    for name, value in options.items():
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return shlex.join(words)


@contextmanager
def processes() -> Iterator[None]:
    """Join the processes for a `with` block, in which only the first prints."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    from accelerate import PartialState

    from informin.distributed import rank

    state = PartialState()
    if rank() == 0:  # on CPUs, PartialState takes every process that torchrun starts for the main one
        yield
    else:
        logging.getLogger("informin").setLevel(logging.ERROR)
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            yield
    state.destroy_process_group()
