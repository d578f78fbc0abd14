"""Compare embedding models on your unlabeled texts: how well they fit, speed, dimensions, and what an adapter gains."""

import argparse
import logging
from contextlib import nullcontext
from pathlib import Path

from informin import program
from informin.cli.model_options import add_model_options, add_shared_lines, add_text_options, model_options
from informin.errors import UsageError, counted
from informin.jobs.compare import compare, draw
from informin.jobs.compare_files import write_comparison, write_texts
from informin.jobs.compare_table import Entry
from informin.jobs.text_files import read_texts
from informin.outputs import only_writer, refuse_used

logger = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> int:
    """Compare models. Returns the exit code: 0, 1 (a model failed), 2 (usage), 130 (interrupted)."""
    parser = program.Parser(prog="informin compare", description=__doc__)
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL",
        help="Hub ids or local folders. Or files of embeddings: .npy, .parquet or .safetensors, with one row per text, "
        "or with the rows of --write_texts.")  # fmt: skip
    add_text_options(parser, required=True)
    add_shared_lines(parser)
    add("--write_texts", metavar="FILE.jsonl",
        help="Only write the texts to embed elsewhere, for instance with an API: the sampled texts and the halves of "
        "the held-out ones.")  # fmt: skip
    add("--output_dir", metavar="FOLDER",
        help="Folder to write: compare.json, table.md, figure, report.html. Must be new or empty.")  # fmt: skip
    add("--max_texts", type=int, default=5_000, help="Compare on a random sample of at most this many texts.")
    add("--seed", type=int, default=0, help="Seed of the sample and of the held-out texts.")
    add_model_options(parser)
    args = parser.parse_args(argv)
    return program.exit_code(lambda: work(args, parser.option_names()), parser.option_names(), "Nothing was saved.")


def work(args: argparse.Namespace, options: list[str]) -> int:
    """Compare the models, or write the texts. The output is locked meanwhile. Returns 1 if a model failed."""
    if not args.models and not args.write_texts:
        raise UsageError("There is no model", fix="Name one or more: informin compare MODEL.")
    if args.write_texts:
        if args.models or args.output_dir or args.strip_shared_lines:
            fix = "Leave out the models, `output_dir` and `strip_shared_lines`."
            raise UsageError("only writes texts", option="write_texts", fix=fix)
        only_write_texts(args.write_texts, args.train_file, args.text_column, args.max_texts, args.seed)
        return 0
    folder = args.output_dir
    if folder:
        refuse_used(folder, "output_dir")

    def progress(entry: Entry) -> None:
        entry.error = entry.error and program.with_flags(entry.error, options)
        logger.info(entry.line())

    with only_writer(folder, "output_dir") if folder else nullcontext():
        texts, source = read_texts(args.train_file, args.text_column)
        how = {"max_texts": args.max_texts, "seed": args.seed, "progress": progress}
        how["strip_shared_lines"] = args.strip_shared_lines
        comparison = compare(args.models, texts, **how, **model_options(args))
        comparison.notes = [program.with_flags(note, options) for note in comparison.notes]
        print(comparison)
        if folder:
            print(f"Saved in {folder}: {', '.join(write_comparison(comparison, folder, source.files))}")
    return 1 if any(entry.error for entry in comparison.entries) else 0


def only_write_texts(path: str, files: list[str], column: str | None, max_texts: int, seed: int) -> None:
    """Write the texts to embed elsewhere."""
    if Path(path).suffix != ".jsonl":
        raise UsageError(f"is {path}", option="write_texts", needed="a name ending in .jsonl")
    with only_writer(path, "write_texts"):
        drawn = draw(read_texts(files, column)[0], max_texts, seed)
        rows = write_texts(path, drawn.sample, drawn.held_out)
    sample, held_out = len(drawn.sample), len(drawn.held_out)
    print(f"{path}: {counted(sample, 'text')} and the halves of {held_out:,} of them, {rows:,} rows")
    print("Embed the rows in this order, and pass the file of embeddings in place of a model.")
