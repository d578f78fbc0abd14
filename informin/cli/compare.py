"""Compare embedding models on your unlabeled texts: how well they fit, speed, dimensions, and what an adapter gains."""

import argparse
import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from informin import program
from informin.adapters.comparison import HalvesScore, draw_texts, mean_cosine, score_halves, word_agreement
from informin.adapters.prediction import hold_out, make_test
from informin.adapters.rows import read_rows
from informin.adapters.vectors import SUFFIXES, load_vectors
from informin.cli.compare_output import print_entries, save_entries, texts_per_second, write_texts
from informin.cli.compare_table import Entry, Sizes
from informin.cli.texts import add_encoder_options, add_text_options, embed_in_memory, encoder_of, read_texts
from informin.errors import UsageError, error_line, one_line
from informin.files import last_name
from informin.models.model import Model
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
    add("--write_texts", metavar="FILE.jsonl",
        help="Only write the texts to embed elsewhere, for instance with an API: the sampled texts and the halves of "
        "the held-out ones.")  # fmt: skip
    add("--output_dir", metavar="FOLDER",
        help="Folder to write: compare.json, table.md, figure, report.html. Must be new or empty.")  # fmt: skip
    add("--max_texts", type=int, default=5_000, help="Compare on a random sample of at most this many texts.")
    add("--seed", type=int, default=0, help="Seed of the sample and of the held-out texts.")
    add_encoder_options(parser)
    args = parser.parse_args(argv)
    return program.exit_code(lambda: compare(args, parser.option_names()), parser.option_names(), "Nothing was saved.")


def compare(args: argparse.Namespace, options: list[str]) -> int:
    """Lock the output, and compare. Returns 1 if a model failed."""
    _check(args)
    output = args.write_texts or args.output_dir
    option = "write_texts" if args.write_texts else "output_dir"
    with only_writer(output, option) if output else nullcontext():
        return _compare(args, options)


def _compare(args: argparse.Namespace, options: list[str]) -> int:
    """Score every model, measure the speeds in alternation, print and save."""
    texts = read_texts(args)
    sample = draw_texts(texts, args.max_texts, args.seed)
    drawn = [texts[i] for i in sample]
    held_out = hold_out(drawn, args.seed)
    if args.write_texts:
        write_texts(args.write_texts, drawn, held_out)
        return 0
    entries, encoders, errors = [], {}, []
    for label, name in _labels(args.models).items():
        entry = Entry(label)
        entries.append(entry)
        try:
            if _is_file(name):
                _score_file(entry, name, texts, sample, held_out, args.seed)
            else:
                encoders[label] = _score_model(entry, name, drawn, args)
        except Exception as error:  # a model's own code can raise anything; compare the others
            errors.append(error)
            encoders.pop(label, None)
            message = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error_line(error)}"
            entry.error = program.with_flags(message, options)
        logger.info(entry.line())
    if len(errors) == len(entries) and isinstance(errors[0], UsageError):
        raise errors[0]
    for label, speeds in texts_per_second(encoders, drawn, args.seed).items():
        next(entry for entry in entries if entry.label == label).speeds = speeds
    sizes = Sizes(len(texts), len(drawn), len(held_out))
    print_entries(entries, sizes)
    if args.output_dir:
        save_entries(args, entries, sizes)
    return 1 if errors else 0


def _check(args: argparse.Namespace) -> None:
    program.require_seed(args.seed)
    if not args.models and not args.write_texts:
        raise UsageError("There is no model", fix="Name one or more: informin compare MODEL.")
    if args.write_texts and (args.models or args.output_dir):
        raise UsageError("only writes texts", option="write_texts", fix="Leave out the models and `output_dir`.")
    if args.write_texts and Path(args.write_texts).suffix != ".jsonl":
        raise UsageError(f"is {args.write_texts}", option="write_texts", needed="a name ending in .jsonl")
    if args.max_texts < 2:
        raise UsageError(f"is {args.max_texts}", option="max_texts", needed="2 or more")
    if args.output_dir:
        refuse_used(args.output_dir, "output_dir")


def _labels(names: list[str]) -> dict[str, str]:
    """Return the given names by the label in the table: the last part of the name, or all of it if it occurs twice."""
    short = [last_name(name) if Path(name).exists() else name for name in names]
    return {one_line(one if short.count(one) == 1 else name): name for one, name in zip(short, names)}


def _is_file(name: str) -> bool:
    return Path(name).suffix.lower() in SUFFIXES and not Path(name).is_dir()


def _score(texts: list[str], vectors: np.ndarray, encode: Callable, seed: int) -> HalvesScore | None:
    """Return the score; None if there is no text to cut in two halves."""
    test = make_test(texts, vectors, encode, seed)
    return score_halves(test) if len(test.first) else None


def _score_model(entry: Entry, name: str, drawn: list[str], args: argparse.Namespace) -> Model:
    encoder = encoder_of(args, name)
    (pooler,) = encoder.poolers
    entry.dimensions, entry.length, entry.prompt = encoder.dimensions, encoder.length, encoder.prompt
    entry.pooler, entry.device, entry.similarity = pooler, encoder.device, encoder.similarity
    vectors = embed_in_memory(encoder, drawn)
    entry.mean_cosine, entry.words = mean_cosine(vectors), word_agreement(drawn, vectors, args.seed)
    entry.score = _score(drawn, vectors, lambda parts: embed_in_memory(encoder, parts), args.seed)
    entry.truncated = len(encoder.truncated.intersection(drawn))
    return encoder


def _score_file(entry: Entry, name: str, texts: list[str], sample: list[int], held_out: np.ndarray, seed: int) -> None:
    vectors = load_vectors(name)
    entry.dimensions = vectors.shape[1]
    complete = len(sample) + 2 * len(held_out)
    if len(vectors) not in (len(texts), complete):
        raise UsageError(
            f"{name} has {len(vectors):,} rows",
            needed=f"{len(texts):,}, one per text without blank lines, or {complete:,}, those of `write_texts`",
        )
    drawn = [texts[i] for i in sample]
    own = read_rows(vectors, slice(0, len(sample)) if len(vectors) == complete else np.array(sample))
    entry.mean_cosine, entry.words = mean_cosine(own), word_agreement(drawn, own, seed)
    if len(vectors) == complete:
        entry.score = _score(drawn, own, lambda parts: read_rows(vectors, slice(len(sample), complete)), seed)
