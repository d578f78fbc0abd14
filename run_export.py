"""Make the folder to use or publish from a checkpoint. See README.md, or `python run_export.py --help`."""

from informin import program

if __name__ == "__main__":
    program.quiet_while_loading()

import argparse
import logging
import sys

import transformers

from informin.errors import OnnxMismatchError, UsageError
from informin.evaluation import load_stsb_dev
from informin.publishing import onnx
from informin.publishing.card import write_card
from informin.publishing.export import DTYPES, export_checkpoint, published_files
from informin.training.sentences import SENTEVAL_INSTEAD, senteval_folder


def main(argv: list[str] | None = None) -> int:
    """Exports one checkpoint. Returns the exit code: 0, 1 (the ONNX file is wrong), 2 (usage)."""
    parser = program.Parser(description=__doc__)
    add = parser.add_argument
    add("checkpoint", help="A checkpoint-N folder of run_unsup.py, or a folder that it or this program wrote.")
    add("folder", help="What to write; must be new.")
    add("--dtype", choices=DTYPES, default="float32", help="Of the weights; float16 and bfloat16 halve the file.")
    add("--onnx", action="store_true", help="Write onnx/model.onnx too, in float32.")
    add("--int8", action="store_true", help="With --onnx, onnx/model_quantized.onnx too, and what it costs.")
    add(
        "--senteval_dir",
        help="With --int8: SentEval's data/downstream, for STS-B dev. Default: $SENTEVAL_DATA, else the Hub's.",
    )
    args = parser.parse_args(argv)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("informin").setLevel(logging.INFO)
    transformers.utils.logging.disable_progress_bar()
    try:
        export(args)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OnnxMismatchError as error:
        print(f"error: {error} The rest of {args.folder} is whole.", file=sys.stderr)
        return 1
    return 0


def export(args: argparse.Namespace) -> None:
    """The folder, then ONNX in it, then what was written."""
    if args.int8 and not args.onnx:
        raise UsageError("--int8 makes the ONNX file smaller: it needs --onnx.")
    pairs = load_stsb_dev(senteval_folder(args.senteval_dir, SENTEVAL_INSTEAD)) if args.int8 else None
    if args.onnx:
        onnx.require_packages()
    export_checkpoint(args.checkpoint, args.folder, args.dtype)
    if args.onnx:
        onnx.export_onnx(args.folder)
    if args.int8:
        onnx.quantise_onnx(args.folder)
        scores = onnx.score_files(args.folder, pairs)
        print(f"{pairs.name}, Spearman x 100: " + ", ".join(f"{name} {score:.2f}" for name, score in scores.items()))
    write_card(args.folder)
    for path in published_files(args.folder):
        print(path.as_posix())


if __name__ == "__main__":
    program.run(main)
