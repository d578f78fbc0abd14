"""The `informin` command: one module with a function `main(argv)` per subcommand."""

import argparse
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import NoReturn

from informin import __version__, program

COMMANDS = {
    "train": "Train sentence embeddings on unlabeled text.",
    "fit": "Adapt a model or embeddings to your texts in seconds, without training.",
    "compare": "Compare models on your texts, without labels: fit, speed, dimensions, adapter.",
    "embed": "Embed a file of texts into a .npy file.",
    "upgrade": "Decide what to do with an index when there is a new model.",
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
    whole = parser()
    command = whole.parse_args(sys.argv[1:2]).command
    if command not in COMMANDS:
        near = get_close_matches(command.lower(), COMMANDS, n=1)
        whole.error(f"no command {command!r}. {f'Did you mean {near[0]}?' if near else 'See informin --help.'}")
    start(command, sys.argv[2:])


def start(command: str, argv: list[str] | None = None) -> NoReturn:
    """Run one subcommand as a program.

    `--help`, Ctrl-C and errors about files and columns do not wait for the import of torch.

    Args:
        command: A name in `COMMANDS`.
        argv: Arguments of the subcommand. Default: those of this process.
    """
    argv = sys.argv[1:] if argv is None else argv
    program.quiet_while_loading()
    program.answer_help(command, argv)
    from informin.cli.early import check_files  # it imports pyarrow, which --help does not wait for

    check_files(command, argv)
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
    parser.add_argument("command", metavar="COMMAND", help="one of the commands below")
    parser.add_argument("--version", action="version", version=f"informin {__version__}")
    return parser
