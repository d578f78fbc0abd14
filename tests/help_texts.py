"""Writes what --help prints of every program to informin/help, from where it is read without loading anything.

python -m tests.help_texts
"""

import contextlib
import importlib
import io
import os
import sys
from unittest import mock

import transformers

from informin.program import HELP
from tests.conftest import ROOT

PROGRAMS = sorted(path.stem for path in ROOT.glob("run_*.py"))
STAMP = f"transformers {transformers.__version__}"


def help_of(program: str) -> str:
    """As the program prints it on 120 columns."""
    printed, argv = io.StringIO(), [f"{program}.py"]
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch.dict(os.environ, COLUMNS="120"),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        importlib.import_module(program).main(["--help"])
    return printed.getvalue()


if __name__ == "__main__":
    for program in PROGRAMS:
        (HELP / f"{program}.txt").write_text(f"{STAMP}\n{help_of(program)}", encoding="utf-8")
