"""What all subcommands share: signals, exit codes, error messages and suggestions for mistyped options.

Imports neither torch nor transformers at module level.
"""

import argparse
import difflib
import logging
import os
import re
import select
import shlex
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from informin.errors import (
    WRITABLE,
    WRITE_ERRNOS,
    InforMinError,
    PushError,
    UsageError,
    error_line,
    one_line,
    refuse_undecoded,
)
from informin.interrupts import Interrupted, as_interrupted, handled_signals, raise_on_signals, silence

HELP = Path(__file__).parent / "help"
LARGEST_SEED = 2**32 - 1


def quiet_while_loading() -> None:
    """Until `run`, end the process with one line on Ctrl-C, SIGTERM or SIGHUP instead of an import's traceback."""

    def end(number, _frame):
        with suppress(OSError):
            os.write(2, f"{Interrupted(number).line()}\n".encode())
        os._exit(128 + number)

    open_closed_streams()
    for number in handled_signals():
        signal.signal(number, end)


def open_closed_streams() -> None:
    """Replace closed standard streams (`>&-`) by empty ones, so that no model file gets their descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))  # the lowest free number


def answer_help(command: str, argv: list[str]) -> None:
    """If the command line only asks for `--help`, print the saved text and exit, without importing torch.

    `python -m tools.help_texts` saves the text. Its first line names the transformers version whose options it lists;
    if another version is installed, the subcommand itself prints its help. Nested subcommands also print their own.
    """
    if argv not in (["--help"], ["-h"]):
        return
    stamp, _, text = (HELP / f"{command}.txt").read_text(encoding="utf-8").partition("\n")
    if stamp == f"transformers {version('transformers')}":
        print(text, end="")
        sys.exit(0)


def exit_code(work: Callable[[], int | None], options: Iterable[str], kept: str = "") -> int:
    """Run a subcommand's work, print its error in one line, and return the exit code.

    Shows informin's log messages, and only errors from transformers.

    Args:
        work: the function to run.
        options: the subcommand's option names without dashes, from `Parser.option_names`. If an error names one of
            them in backticks, it is printed as a flag.
        kept: a sentence to print after a signal that says what is on disk.

    Returns:
        The value of `work` (0 for None), the error's exit code, or 128 + the signal's number: SIGPIPE's if the
        reader of stdout has ended.
    """
    import transformers

    logging.basicConfig(format="%(message)s")
    logging.getLogger("informin").setLevel(logging.INFO)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        return work() or 0
    except InforMinError as error:
        finish = f" Finish with: {finishing_command(error)}" if isinstance(error, PushError) else ""
        say(f"error: {with_flags(str(error), options)}{finish}")
        return error.exit_code
    except OSError as error:
        if isinstance(error, BrokenPipeError) and stdout_has_no_reader():
            silence([1])
            if kept:
                say(f"The reader of stdout has ended. {kept}")
            return 128 + signal.SIGPIPE
        if error.errno not in WRITE_ERRNOS:
            raise
        say(f"error: a file cannot be written: {one_line(error_line(error))}. {WRITABLE}")
        return UsageError.exit_code
    except KeyboardInterrupt as error:
        return say_interrupted(error, kept)


def say(text: str) -> None:
    """Print to stderr, unless it is closed."""
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def say_interrupted(error: KeyboardInterrupt, kept: str = "") -> int:
    """Print what a signal interrupted, on the first process only, and return the exit code."""
    interrupted = as_interrupted(error)
    if os.environ.get("RANK", "0") == "0":
        say(interrupted.line(kept))
    return 128 + interrupted.number


def with_flags(text: str, options: Iterable[str]) -> str:
    """Return the text with `name` replaced by --name for each of the options."""
    names = set(options)
    return re.sub(r"`(\w+)`", lambda match: f"--{match[1]}" if match[1] in names else match[0], text)


def finishing_command(error: PushError) -> str:
    """Return the command that finishes a push."""
    options = dict(error.finish)
    words = ["python", "-m", "informin", "push", str(options.pop("folder")), str(options.pop("repo"))]
    for name, value in options.items():
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return shlex.join(words)


def run(main: Callable[[], int]) -> NoReturn:
    """Run a program whose imports are done and exit with its code. From here on, signals raise exceptions."""
    raise_on_signals()
    try:
        code = main()
    except KeyboardInterrupt as error:
        code = say_interrupted(error)
    drop_unwritable()
    sys.exit(code)


def stdout_has_no_reader() -> bool:
    """Return whether stdout is a pipe whose reader has ended, as in `informin eval ... | head`."""
    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(1, select.POLLERR)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def drop_unwritable() -> None:
    """Flush stdout and stderr, and silence a closed one so that Python does not fail at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            silence([stream.fileno()])


def require_seed(value: int) -> None:
    """Raise UsageError for a seed that NumPy or scikit-learn would refuse."""
    if not 0 <= value <= LARGEST_SEED:
        raise UsageError(f"is {value}", option="seed", needed=f"an integer from 0 to {LARGEST_SEED}")


class Parser(argparse.ArgumentParser):
    """A parser without abbreviations, whose error for an unknown option suggests the closest known one."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def parse_args(self, args=None, namespace=None):
        for word in sys.argv[1:] if args is None else args:
            try:
                refuse_undecoded(word, one_line(word))
            except UsageError as error:
                self.refuse(error)
        namespace, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"{' '.join(unknown)}: no such option.{self._nearest(unknown)} See --help.")
        return namespace

    def refuse(self, error: UsageError) -> NoReturn:
        """Print the error in one line, without the usage, and exit."""
        self.exit(error.exit_code, f"error: {error}\n")

    def option_names(self) -> list[str]:
        """Return the names of all options without dashes, including those of subcommands."""
        parsers: list[argparse.ArgumentParser] = [
            self,
            *(sub for action in self._actions for sub in subparsers(action)),
        ]
        return [name[2:] for parser in parsers for name in parser._option_string_actions if name.startswith("--")]

    def _nearest(self, unknown: list[str]) -> str:
        # Negated forms have no help.
        known = [name for name in self.option_names() if not name.startswith(("no_", "no-"))]
        words = [word.partition("=")[0][2:].replace("-", "_").lower() for word in unknown if word.startswith("--")]
        near = [f"--{match}" for word in words for match in difflib.get_close_matches(word, known, n=1)]
        return f" Did you mean {', '.join(near)}?" if near else ""


def subparsers(action: argparse.Action) -> list[argparse.ArgumentParser]:
    """Return the parsers of the subcommands that an action chooses from."""
    return list(action.choices.values()) if isinstance(action, argparse._SubParsersAction) else []
