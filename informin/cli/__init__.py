"""The `informin` command. A command is a function: its signature and its docstring are its options and their help.

cyclopts reads them. A function imports torch only after the options are parsed, so that `--help` and wrong options are
answered at once. The options of `train` are fields of dataclasses, and `informin.cli.train` parses them itself.
"""

import sys
from collections.abc import Callable
from functools import cache
from typing import NoReturn

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.help import DefaultFormatter, PanelSpec
from rich import box
from rich.console import Console

from informin import __version__
from informin.cli import commands, frozen_commands
from informin.cli.program import exit_code, print_error, run_program
from informin.errors import one_line


def main() -> NoReturn:
    """Run the `informin` command, and exit with its exit code."""
    run_program(lambda: run_command(*sys.argv[1:]))


def start(command: str) -> NoReturn:
    """Run one of the `COMMANDS` as a program, with the arguments of this process."""
    run_program(lambda: run_command(command, *sys.argv[1:]))


def train_command(*words: str) -> int:
    """Train sentence embeddings on unlabeled text."""
    from informin.cli.train import main

    return main(list(words))


COMMANDS: dict[str, Callable[..., int | None]] = {  # in the order of the help
    "train": train_command,
    "fit": frozen_commands.fit_command,
    "distill": frozen_commands.distill_command,
    "embed": commands.embed_command,
    "eval": commands.eval_command,
    "duplicates": frozen_commands.duplicates_command,
    "index": frozen_commands.index_command,
    "search": frozen_commands.search_command,
    "export": commands.export_command,
    "push": commands.push_command,
    "check": commands.check_command,
}


def run_command(*words: str) -> int:
    """Run a command.

    Args:
        words: Its name and its arguments, as on the command line.

    Returns:
        The exit code: 0, 1 (failure), 2 (wrong options or files), or 128 + signal.
    """
    if words[:1] == ("train",):
        return train_command(*words[1:])
    try:
        function, given, _ = command_app().parse_args(words or ["--help"], exit_on_error=False, print_error=False)
    except CycloptsError as error:
        print_error(f"error: {one_line(str(error))} See --help.")
        return 2
    if not words:
        print_error("error: The command is missing. See informin --help.")
        return 2
    return exit_code(lambda: function(*given.args, **given.kwargs), flags_of(words[0]))


class HelpConsole(Console):
    """Prints help. If its reader has gone, as in `informin --help | head -1`, the error ends the program."""

    def on_broken_pipe(self) -> None:
        raise


@cache
def command_app() -> App:
    """Return the description of all commands for cyclopts. Options have one spelling, with underscores."""
    app = App(
        name="informin",
        help="Unsupervised sentence embeddings: train, adapt, evaluate, search, publish.\n\n"
        "`informin COMMAND --help` lists the options of a command.",
        version=f"informin {__version__}",
        version_flags="--version",
        console=HelpConsole(),
        help_formatter=DefaultFormatter(panel_spec=PanelSpec(box=box.SIMPLE, padding=(0, 0))),
        group_commands=Group("Commands", sort_key=0),
        default_parameter=Parameter(name_transform=str, negative="", consume_multiple=1, allow_repeating=True),
    )
    for number, (name, function) in enumerate(COMMANDS.items()):
        app.command(function, name=name, sort_key=number)
    return app


@cache
def flags_of(command: str) -> tuple[str, ...]:
    """Return the names of a command's options, without dashes."""
    if command not in COMMANDS:
        return ()
    app = command_app()
    arguments = app[command].assemble_argument_collection(default_parameter=app.default_parameter)
    return tuple(name.removeprefix("--") for argument in arguments for name in argument.names)
