"""The `informin` command: one module with a function `main(argv)` per command.

They import torch only after the options are parsed, so that `--help` and wrong options are answered at once. Those of
`train` are options of transformers, which imports torch for them; only what must be downloaded is checked before.
"""

import argparse
import sys
from importlib import import_module
from typing import NoReturn

from informin import __version__, program

COMMANDS = {
    "train": "Train sentence embeddings on unlabeled text.",
    "fit": "Adapt a model or embeddings to your texts in seconds, without training.",
    "distill": "Distill a model into a static model of your texts, without training.",
    "embed": "Embed texts into a .npy file.",
    "eval": "Score models on STS and transfer tasks, labeled texts or retrieval.",
    "index": "Build an index of your texts to search.",
    "search": "Search your texts.",
    "export": "Turn a checkpoint into a folder to use or publish; optionally ONNX.",
    "push": "Publish an exported model on the Hub.",
}


def main() -> NoReturn:
    """Run the `informin` command, and exit with its exit code."""
    start(parser().parse_args(sys.argv[1:2]).command, sys.argv[2:])


def start(command: str, argv: list[str] | None = None) -> NoReturn:
    """Run one command as a program.

    Args:
        command: A name in `COMMANDS`.
        argv: Arguments of the command. Default: those of this process.
    """
    program.run(lambda: import_module(f"informin.cli.{command}").main(sys.argv[1:] if argv is None else argv))


def parser() -> program.Parser:
    """Return the parser of the first argument."""
    listed = "\n".join(f"  {name:10}{text}" for name, text in COMMANDS.items())
    parser = program.Parser(
        prog="informin",
        usage="informin COMMAND [options]",
        description="Unsupervised sentence embeddings: train, adapt, evaluate, search, publish.",
        epilog=f"commands:\n{listed}\n\n`informin COMMAND --help` lists the options of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", metavar="COMMAND", choices=COMMANDS, help="one of the commands below")
    parser.add_argument("--version", action="version", version=f"informin {__version__}")
    return parser
