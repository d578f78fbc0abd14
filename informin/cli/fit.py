"""Adapt a model or its embeddings to your texts in closed form, without training or labels."""

import argparse
from os.path import expanduser

from informin import program
from informin.cli.options import (
    MODEL_OPTIONS,
    add_model_options,
    add_output_dir,
    add_pooler,
    add_text_options,
    model_options,
)
from informin.program import processes

FIT_OPTIONS = ("task", "embeddings", "dimension", "rotation", "seed")


def main(argv: list[str] | None = None) -> int:
    """Fit an adapter. Returns the exit code: 0, 1 (failure), 2 (usage), 130 (interrupted)."""
    parser = program.Parser(prog="informin fit", description=__doc__)
    add = parser.add_argument
    add(
        "--task",
        required=True,
        choices=["clustering", "search"],
        help="What the embeddings are for. clustering: also labels and near-duplicates. search: for queries that "
        "resemble the texts.",
    )
    add(
        "--model_name",
        type=expanduser,
        metavar="MODEL",
        help="Hub id or local folder. The output is this model with the adapter.",
    )
    add_text_options(parser, required=False)
    add(
        "--embeddings",
        type=expanduser,
        metavar="FILE",
        help="Embeddings of the texts from any source: .npy, .parquet or .safetensors. Alone, the output is the "
        "adapter itself and the adapted documents.npy; with --model_name, they must be this model's and save the time "
        "to embed.",
    )
    add_output_dir(parser, "an output of fit or distill")
    add("--dimension", type=int, metavar="N", help="Number of dimensions of the adapted vectors. Default: all.")
    add(
        "--rotation",
        choices=["principal", "bits"],
        default="principal",
        help="principal: the first numbers of a vector approximate it best, for vectors that are cut later. bits: for "
        "binary quantization, one bit per number. Default: %(default)s.",
    )
    add(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="Seed of the sample of texts, if there are more than 50,000. Default: 0.",
    )
    add_pooler(parser)
    add_model_options(parser)
    args = parser.parse_args(argv)
    if not args.model_name and not args.embeddings:
        parser.error("--model_name (with --train_file) or --embeddings is required")
    if args.model_name and not args.train_file:
        parser.error("--model_name needs --train_file")
    parser.check_needs(args, {"text_column": "train_file"} | {name: "model_name" for name in MODEL_OPTIONS})
    return program.exit_code(lambda: work(args), parser.option_names(), "Nothing was written.")


def work(args: argparse.Namespace) -> None:
    """Read the texts, fit, save, and print what was done."""
    from informin.files import only_writer, raise_if_used
    from informin.hub import raise_if_not_found
    from informin.model.records import ADAPTER, FITTED

    kind = FITTED if args.model_name else ADAPTER
    raise_if_used(args.output_dir, "output_dir", replaces=kind if args.overwrite_output_dir else None)
    if args.model_name:
        raise_if_not_found(args.model_name, args.revision)
    from informin.distributed import first_only
    from informin.frozen.fit import fit
    from informin.texts import read_texts

    with processes(), first_only(only_writer(args.output_dir, "output_dir")):
        texts = list(read_texts(args.train_file, args.text_column)) if args.train_file else None
        options = {name: getattr(args, name) for name in FIT_OPTIONS}
        if args.model_name:
            options |= model_options(args)
        result = fit(args.model_name, texts, **options)
        result.save(args.output_dir, overwrite_output_dir=args.overwrite_output_dir)
        print(result)
