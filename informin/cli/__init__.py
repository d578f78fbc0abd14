"""The `informin` command: one module with a function `main(argv)` per subcommand."""

import argparse
import sys
from importlib import import_module
from typing import NoReturn

from informin import __version__, program

COMMANDS = {
    "train": "Train sentence embeddings on unlabeled text.",
    "fit": "Adapt a model or embeddings to your texts in seconds, without training.",
    "compare": "Compare models on your texts, without labels: fit, speed, dimensions, adapter.",
    "embed": "Embed a file of texts into a .npy file.",
    "search": "Search sentences in your browser, with one model or two.",
    "eval": "Score encoders on STS and transfer tasks, labeled samples or retrieval pairs.",
    "study": "Repeat runs over settings and seeds, and compare them.",
    "report": "Write report.html of a run again.",
    "push": "Publish an exported model on the Hub.",
    "export": "Turn a checkpoint into a folder to use or publish; optionally ONNX.",
    "analyze": "Draw figures of embeddings.",
}


def main() -> NoReturn:
    """Run the `informin` command. Exits with the subcommand's exit code, or 2 for an unknown subcommand."""
    start(parser().parse_args(sys.argv[1:2]).command, sys.argv[2:])


def start(command: str, argv: list[str] | None = None) -> NoReturn:
    """Run one subcommand as a program.

    `--help` and Ctrl-C work without waiting for the import of torch.

    Args:
        command: A name in `COMMANDS`.
        argv: Arguments of the subcommand. Default: those of this process.
    """
    argv = sys.argv[1:] if argv is None else argv
    program.quiet_while_loading()
    program.answer_help(command, argv)
    module = import_module(f"informin.cli.{command}")
    program.run(lambda: module.main(argv))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the first argument."""
    listed = "\n".join(f"  {name:10}{text}" for name, text in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="informin",
        usage="informin COMMAND [options]",
        description="Unsupervised sentence embeddings: train, evaluate, publish.",
        epilog=f"commands:\n{listed}\n\n`informin COMMAND --help` lists a command's options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of the commands below")
    parser.add_argument("--version", action="version", version=f"informin {__version__}")
    return parser
