"""What the run_*.py share: signals, the screen, exit codes, and options that are nearly right. Imports nothing slow."""

import argparse
import difflib
import logging
import os
import re
import runpy
import shlex
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from informin.errors import InforMinError, PushError
from informin.interrupts import Interrupted, as_interrupted, heeded_signals, raise_on_signals, silence

HELP = Path(__file__).parent / "help"


def quiet_while_loading() -> None:
    """Until `run`, Ctrl-C and other signals end the program with a line, not with the traceback of an import."""

    def end(number, _frame):
        with suppress(OSError):
            os.write(2, f"{Interrupted(number).line()}\n".encode())
        os._exit(128 + number)

    for number in heeded_signals():
        signal.signal(number, end)


def answer_help(name: str) -> None:
    """Prints the help of a program and ends it, where that is all it was asked for: without loading anything.

    The text is a file that the program's own help was written to (`python -m tests.help_texts`), and its first line
    says with which transformers, whose options are in it. With another, and for sub-commands, the program answers.
    """
    if sys.argv[1:] not in (["--help"], ["-h"]):
        return
    stamp, _, text = (HELP / f"{name}.txt").read_text(encoding="utf-8").partition("\n")
    if stamp == f"transformers {version('transformers')}":
        print(text, end="")
        sys.exit(0)


def exit_code(work: Callable[[], int | None], options: Iterable[str], kept: str = "") -> int:
    """Does a program's work, says what ended it, and returns the exit code.

    It is work's own (None is 0), an error's, or 128 + a signal's number.

    The library's messages are shown, of transformers only errors.

    Args:
        options: of this program, without dashes, as `Parser.option_names` has them: where an error names one of them
            in backticks, its flag is printed.
        kept: a sentence for after a signal: what of the work is on disk.
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
    except KeyboardInterrupt as error:
        return say_interrupted(error, kept)


def say(text: str) -> None:
    """Prints to stderr, unless it is closed."""
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def say_interrupted(error: KeyboardInterrupt, kept: str = "") -> int:
    """Says what a signal interrupted, on the first of several processes, and returns the exit code."""
    interrupted = as_interrupted(error)
    if os.environ.get("RANK", "0") == "0":
        say(interrupted.line(kept))
    return 128 + interrupted.number


def with_flags(text: str, options: Iterable[str]) -> str:
    """The text with each `name` that is one of the options as --name."""
    names = set(options)
    return re.sub(r"`(\w+)`", lambda match: f"--{match[1]}" if match[1] in names else match[0], text)


def finishing_command(error: PushError) -> str:
    """What to type to finish a push."""
    options = dict(error.finish)
    words = ["python", "run_push.py", options.pop("folder"), options.pop("repo")]
    for name, value in options.items():
        words += [f"--{name}"] if value is True else [f"--{name}", value]
    return shlex.join(words)


def run(main: Callable[[], int]) -> NoReturn:
    """Runs a program whose imports are done: Ctrl-C and other signals raise, and what main leaves of them is a line."""
    raise_on_signals()
    try:
        code = main()
    except KeyboardInterrupt as error:
        code = say_interrupted(error)
    drop_unwritable()
    sys.exit(code)


def drop_unwritable() -> None:
    """Has Python not fail, when it ends, to write what a closed stdout or stderr did not take."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            silence([stream.fileno()])


class NearestOption:
    """An argparse parser's refusal of an option that it does not have, with the nearest one that it has."""

    def parse_args(self, args=None, namespace=None):
        namespace, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"{' '.join(unknown)}: no such option.{self._nearest(unknown)} See --help.")
        return namespace

    def option_names(self) -> list[str]:
        """Of all options, those of sub-commands included, without dashes."""
        parsers = [self, *(sub for action in self._actions for sub in subparsers(action))]
        return [name[2:] for parser in parsers for name in parser._option_string_actions if name.startswith("--")]

    def _nearest(self, unknown: list[str]) -> str:
        known = self.option_names()
        words = [word.partition("=")[0][2:].replace("-", "_").lower() for word in unknown if word.startswith("--")]
        near = [f"--{match}" for word in words for match in difflib.get_close_matches(word, known, n=1)]
        return f" Did you mean {', '.join(near)}?" if near else ""


def subparsers(action: argparse.Action) -> list[argparse.ArgumentParser]:
    """Those of the sub-commands that an action chooses from."""
    return list(action.choices.values()) if isinstance(action, argparse._SubParsersAction) else []


class Parser(NearestOption, argparse.ArgumentParser):
    """argparse's parser without abbreviations."""

    def __init__(self, **kwargs):
        super().__init__(allow_abbrev=False, **kwargs)


# The commands of an installation, as pyproject.toml names them. Each is its script: Ctrl-C has its word while it loads.
train, evaluate, study, push, export, analyze = (
    partial(runpy.run_module, script, run_name="__main__")
    for script in ("run_unsup", "run_eval", "run_study", "run_push", "run_export", "run_analysis")
)
