"""Embed a file of texts into a .npy file. Resumes after an interruption."""

import argparse
from pathlib import Path

from informin import program
from informin.cli.processes import processes
from informin.cli.texts import add_encoder_options, add_text_options, encoder_of, read_with_rows
from informin.distributed import on_first, rank
from informin.errors import UsageError, counted
from informin.models.embed_file import embed_file
from informin.outputs import refuse_unwritable


def main(argv: list[str] | None = None) -> int:
    """Embed the texts. Returns the exit code: 0, 2 (usage), 130 (interrupted)."""
    parser = program.Parser(prog="informin embed", description=__doc__)
    parser.add_argument("--model_name", required=True, metavar="MODEL", help="Hub id or local folder.")
    add_text_options(parser, required=True)
    parser.add_argument(
        "--output", required=True, metavar="FILE.npy", help="File to write: (texts, dimensions) float32."
    )
    add_encoder_options(parser)
    args = parser.parse_args(argv)
    return program.exit_code(lambda: embed(args), parser.option_names(), "The same command resumes.")


def embed(args: argparse.Namespace) -> None:
    """Read the texts, embed them, and print the shape."""
    if Path(args.output).suffix != ".npy":
        raise UsageError(f"is {args.output}", option="output", needed="a name ending in .npy")
    with processes("The same command resumes."):
        on_first(lambda: refuse_unwritable(args.output, "output"))
        texts, source = read_with_rows(args)
        on_first(lambda: source.refuse_other(Path(args.output)))
        vectors = embed_file(encoder_of(args), texts, args.output)
        if rank() == 0:
            source.save(Path(args.output))
        print(f"{args.output}: {counted(len(vectors), 'text')}, {vectors.shape[1]} dimensions, float32")
        if source.blank:
            print(f"{source.line()}\n{source.told(Path(args.output))}", end="")
