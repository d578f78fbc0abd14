"""Save the `--help` text of every subcommand to informin/help, and the types of the options to term_options.pyi.

`--help` then answers without importing torch.

python -m tools.help_texts
"""

import contextlib
import io
import os
from importlib import import_module
from unittest import mock

import transformers

from informin.cli import COMMANDS
from informin.program import HELP
from tools import option_stubs

STAMP = f"transformers {transformers.__version__}"


def help_of(command: str) -> str:
    """Return the help that a subcommand prints on 120 columns."""
    printed = io.StringIO()
    with (
        mock.patch.dict(os.environ, COLUMNS="120"),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        import_module(f"informin.cli.{command}").main(["--help"])
    return printed.getvalue()


if __name__ == "__main__":
    option_stubs.write()
    for command in COMMANDS:
        (HELP / f"{command}.txt").write_text(f"{STAMP}\n{help_of(command)}", encoding="utf-8")
