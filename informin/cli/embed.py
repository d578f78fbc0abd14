"""Embed a file of texts into a .npy file. Resumes after an interruption."""

import argparse
from pathlib import Path

from informin import program
from informin.cli.model_options import add_model_options, add_text_options, model_options
from informin.cli.processes import processes
from informin.distributed import on_first, rank
from informin.errors import counted
from informin.jobs.embed import embed, refuse_output
from informin.jobs.text_files import read_texts


def main(argv: list[str] | None = None) -> int:
    """Embed the texts. Returns the exit code: 0, 2 (usage), 130 (interrupted)."""
    parser = program.Parser(prog="informin embed", description=__doc__)
    parser.add_argument("--model_name", required=True, metavar="MODEL", help="Hub id or local folder.")
    add_text_options(parser, required=True)
    parser.add_argument(
        "--output", required=True, metavar="FILE.npy", help="File to write: (texts, dimensions) float32."
    )
    parser.add_argument("--windows", action="store_true",
        help="Read texts that are too long for the model in windows, and average their embeddings. Default: truncate "
        "them.")  # fmt: skip
    add_model_options(parser)
    args = parser.parse_args(argv)
    return program.exit_code(lambda: work(args), parser.option_names(), "Run the same command again to resume.")


def work(args: argparse.Namespace) -> None:
    """Read the texts, embed them, and print the shape."""
    output = Path(args.output)
    with processes("Run the same command again to resume."):
        refuse_output(output)
        texts, source = read_texts(args.train_file, args.text_column)
        on_first(lambda: source.refuse_other(output))
        vectors = embed(args.model_name, texts, output=args.output, windows=args.windows, **model_options(args))
        if rank() == 0:
            source.save(output)
        print(f"{args.output}: {counted(len(vectors), 'text')}, {vectors.shape[1]} dimensions, float32")
        if source.blank:
            print(source.line())
        print(source.told(output), end="")
