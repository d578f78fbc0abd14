"""What the run_*.py share: Ctrl-C, the screen, exit codes, and options that are nearly right. Imports nothing slow."""

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
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from informin.errors import InforMinError, PushError

HELP = Path(__file__).parent / "help"


def quiet_while_loading() -> None:
    """Until `run`, Ctrl-C ends the program with a word, not with the traceback of an import."""

    def end(number, _frame):
        os.write(2, b"Interrupted.\n")
        os._exit(128 + number)

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, end)


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


def exit_code(work: Callable[[], int | None], options: Iterable[str], interrupted: str = "Interrupted.") -> int:
    """Does a program's work, says what ended it, and returns the exit code: work's own (None is 0), an error's, or 130.

    The library's messages are shown, of transformers only errors.

    Args:
        options: of this program, without dashes, as `Parser.option_names` has them: where an error names one of them
            in backticks, its flag is printed.
        interrupted: what to print after Ctrl-C.
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
        print(f"error: {with_flags(str(error), options)}{finish}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return 128 + signal.SIGINT


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
    """Runs a program whose imports are done: Ctrl-C is KeyboardInterrupt again, and what main leaves of it a word."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


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
train, evaluate, study, push, export, analyse = (
    partial(runpy.run_module, script, run_name="__main__")
    for script in ("run_unsup", "run_eval", "run_study", "run_push", "run_export", "run_analysis")
)
