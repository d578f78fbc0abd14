"""Distill a model into a static model of your texts in seconds: a table of token vectors, without a transformer."""

import argparse
from os.path import expanduser

from informin import program
from informin.cli.options import add_model_options, add_output_dir, add_pooler, add_text_options, model_options
from informin.program import processes


def main(argv: list[str] | None = None) -> int:
    """Distill a model. Returns the exit code: 0, 1 (failure), 2 (usage), 130 (interrupted)."""
    parser = program.Parser(prog="informin distill", description=__doc__)
    add = parser.add_argument
    add(
        "--task",
        required=True,
        choices=["clustering", "search"],
        help="clustering: also for labels. search: the result contains words of your texts.",
    )
    add("--model_name", required=True, type=expanduser, metavar="MODEL", help="Hub id or local folder.")
    add_text_options(parser)
    add(
        "--embeddings",
        type=expanduser,
        metavar="FILE",
        help="Embeddings of the texts by this model, from `informin embed`, to save the time to embed.",
    )
    add_output_dir(parser, "an output of fit or distill")
    add_pooler(parser)
    add_model_options(parser)
    args = parser.parse_args(argv)
    return program.exit_code(lambda: work(args), parser.option_names(), "Nothing was written.")


def work(args: argparse.Namespace) -> None:
    """Read the texts, distill, save, and print what was done."""
    from informin.files import only_writer, raise_if_used
    from informin.hub import raise_if_not_found
    from informin.model.records import FITTED

    raise_if_used(args.output_dir, "output_dir", replaces=FITTED if args.overwrite_output_dir else None)
    raise_if_not_found(args.model_name, args.revision)
    from informin.distributed import first_only
    from informin.frozen.distill import distill
    from informin.texts import read_texts

    with processes(), first_only(only_writer(args.output_dir, "output_dir")):
        texts = list(read_texts(args.train_file, args.text_column))
        result = distill(args.model_name, texts, task=args.task, embeddings=args.embeddings, **model_options(args))
        result.save(args.output_dir, overwrite_output_dir=args.overwrite_output_dir)
        print(result)
