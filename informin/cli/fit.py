"""Adapt a model or its embeddings to your texts in closed form, without training or labels."""

import argparse
import time

from informin import program
from informin.adapters.prediction import RECIPES
from informin.adapters.vectors import load_vectors
from informin.cli.fit_output import save_model, save_vectors
from informin.cli.given_vectors import check_rows, check_vectors
from informin.cli.processes import processes
from informin.cli.source_rows import SourceRows
from informin.cli.texts import (
    add_encoder_options,
    add_text_options,
    embed_in_memory,
    encoder_of,
    read_with_rows,
)
from informin.cli.verdict import AUTO, chosen_adapter
from informin.distributed import first_only, rank
from informin.errors import UsageError, counted
from informin.outputs import only_writer, refuse_used


def main(argv: list[str] | None = None) -> int:
    """Fit an adapter. Returns the exit code: 0, 2 (usage), 130 (interrupted)."""
    parser = program.Parser(prog="informin fit", description=__doc__)
    add = parser.add_argument
    add("--model_name", metavar="MODEL", help="Hub id or local folder. The output is this model with the adapter.")
    add_text_options(parser, required=False)
    add("--embeddings", metavar="FILE",
        help="Embeddings of the texts from any source: .npy, .parquet or .safetensors. Alone, the output is the "
        "adapter itself; with --model_name, they must be this model's and save the time to embed.")  # fmt: skip
    add("--output_dir", required=True, metavar="FOLDER", help="Folder to write; must be new or empty.")
    add("--documents", choices=["adapted", "smoothed"],
        help="Also write documents.npy, the vectors of the texts for your index. smoothed: each is also averaged with "
        "its nearest texts; queries are not. Default: adapted with --embeddings alone.")  # fmt: skip
    add("--recipe", default=AUTO, choices=(AUTO, *sorted(RECIPES)),
        help="documents: for search, with whitening. short_texts: for titles and questions, without whitening. auto: "
        "the one with the larger predicted gain; nothing is written if it is likely to hurt.")  # fmt: skip
    add("--n_neighbors", type=int, default=10, help="Number of neighbors of each text.")
    add("--whitening", type=float,
        help="Exponent of the whitening, from 0 (none) to 0.5 (full). Default: 0.3 for documents, 0 for short "
        "texts.")  # fmt: skip
    add("--self_weight", type=float,
        help="Fraction of a text in its own neighborhood mean; lower values suit clustering. Default: 0.8 for "
        "documents, 0.7 for short texts.")  # fmt: skip
    add("--seed", type=int, default=0, help="Seed of the sample of texts, if there are more than 50,000.")
    add("--senteval_dir",
        help="SentEval's data/downstream, to report STS-B dev. Default: $SENTEVAL_DATA, or not scored.")  # fmt: skip
    add_encoder_options(parser)
    args = parser.parse_args(argv)
    return program.exit_code(lambda: fit(args), parser.option_names(), "Nothing was written.")


def fit(args: argparse.Namespace) -> None:
    """Lock the output folder, and fit."""
    _check(args)
    refuse_used(args.output_dir, "output_dir")
    with processes("Run the same command again."), first_only(only_writer(args.output_dir, "output_dir")):
        _fit(args)


def _fit(args: argparse.Namespace) -> None:
    """Embed, fit, report and save."""
    texts, source = read_with_rows(args) if args.train_file else ([], SourceRows())
    if source.blank:
        print(source.line())
    vectors = load_vectors(args.embeddings) if args.embeddings else None
    if vectors is not None and texts:
        check_rows(args.embeddings, vectors, texts)
    encoder = encoder_of(args) if args.model_name else None
    if vectors is None:
        assert encoder is not None  # `_check` requires a model or embeddings
        vectors = embed_in_memory(encoder, texts)
    elif encoder:
        check_vectors(args.embeddings, vectors, texts, encoder, args.seed)
    adapter, predicted = chosen_adapter(args, encoder, vectors, texts)
    start = time.monotonic()
    adapter.fit(vectors)
    if rank() > 0:
        return
    distinct = f", {adapter.n_samples_:,} of them distinct," if adapter.n_samples_ < len(vectors) else ""
    print(
        f"Fitted on {counted(len(vectors), 'embedding')}{distinct} of {vectors.shape[1]} dimensions in "
        f"{time.monotonic() - start:.1f} s. Weight of the fitted map against the identity: {adapter.strength_:.2f}."
    )
    if adapter.strength_ < 0.5:
        print("Few texts for this dimension: the adapter changes little. Add texts for a larger effect.")
    if encoder:
        save_model(args, adapter, encoder, vectors, texts, source, predicted)
    else:
        save_vectors(args, adapter, vectors, texts, source)


def _check(args: argparse.Namespace) -> None:
    program.require_seed(args.seed)
    if not args.model_name and not args.embeddings:
        raise UsageError("is missing", option="model_name", fix="Give --model_name with --train_file, or --embeddings.")
    if args.model_name and not args.train_file:
        raise UsageError("is missing", option="train_file", fix="--model_name needs the texts.")
    if args.model_name and args.pooler != "auto":
        raise UsageError(
            f"is {args.pooler}", option="pooler", needed="auto", fix="The output keeps the pooling of the model."
        )
