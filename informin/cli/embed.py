"""Embed texts into a .npy file. If it is interrupted, the same command resumes."""

import argparse
from os.path import expanduser

from informin import program
from informin.cli.options import add_model_options, add_overwrite, add_pooler, add_text_options, model_options
from informin.program import processes


def main(argv: list[str] | None = None) -> int:
    """Embed the texts. Returns the exit code: 0, 1 (failure), 2 (usage), 130 (interrupted)."""
    parser = program.Parser(prog="informin embed", description=__doc__)
    add = parser.add_argument
    add("--model_name", required=True, type=expanduser, metavar="MODEL", help="Hub id or local folder.")
    add_text_options(parser)
    add(
        "--output",
        required=True,
        type=expanduser,
        metavar="FILE.npy",
        help="File to write: (texts, dimensions) float32.",
    )
    add_overwrite(parser, "an output of embed with other texts or another model")
    add(
        "--side",
        choices=["query", "document"],
        help="Embed as queries or as documents of a search, with the prompt or route that the model has for them.",
    )
    add_pooler(parser)
    add_model_options(parser)
    args = parser.parse_args(argv)
    return program.exit_code(lambda: work(args), parser.option_names(), "Run the same command again to resume.")


def work(args: argparse.Namespace) -> None:
    """Read the texts, embed them, and print the shape."""
    from informin.hub import raise_if_not_found

    raise_if_not_found(args.model_name, args.revision)
    from informin.errors import UsageError, counted
    from informin.model.embedding import embed
    from informin.texts import read_texts

    with processes():
        texts = list(read_texts(args.train_file, args.text_column))
        if not texts:
            raise UsageError("contains no text that is not blank", option="train_file")
        vectors = embed(
            args.model_name,
            texts,
            args.output,
            side=args.side,
            overwrite_output_dir=args.overwrite_output_dir,
            **model_options(args),
        )
        print(f"{args.output}: {counted(len(vectors), 'text')}, {vectors.shape[1]} dimensions, float32")
