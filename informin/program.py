"""What the run_*.py share: Ctrl-C while they load, and options that are nearly right. Imports nothing slow."""

import argparse
import difflib
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn


def quiet_while_loading() -> None:
    """Until `run`, Ctrl-C ends the program with a word, not with the traceback of an import."""

    def end(number, _frame):
        os.write(2, b"Interrupted.\n")
        os._exit(128 + number)

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, end)


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

    def _nearest(self, unknown: list[str]) -> str:
        parsers = [self, *(sub for action in self._actions for sub in subparsers(action))]
        known = [name[2:] for parser in parsers for name in parser._option_string_actions if name.startswith("--")]
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
