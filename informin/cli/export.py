"""Make the folder to use or publish from a checkpoint."""

import argparse

from informin import program
from informin.errors import OnnxMismatchError, UsageError
from informin.evaluation import load_stsb_dev
from informin.evaluation.senteval_files import senteval_folder
from informin.publishing import onnx
from informin.publishing.card import write_card
from informin.publishing.export import DTYPES, export_checkpoint
from informin.publishing.published import published_files


def main(argv: list[str] | None = None) -> int:
    """Exports one checkpoint. Returns the exit code: 0, 1 (the ONNX file is wrong), 2 (usage), 130 (interrupted)."""
    parser = program.Parser(prog="informin export", description=__doc__)
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
    return program.exit_code(lambda: export(args), parser.option_names())


def export(args: argparse.Namespace) -> None:
    """The folder, then ONNX in it, then what was written."""
    if args.int8 and not args.onnx:
        raise UsageError("is set without `onnx`", option="int8", fix="Set both.")
    pairs = load_stsb_dev(senteval_folder(args.senteval_dir)) if args.int8 else None
    if args.onnx:
        onnx.require_packages()
        onnx.refuse_no_file(args.checkpoint)
    export_checkpoint(args.checkpoint, args.folder, args.dtype)
    try:
        if args.onnx:
            onnx.export_onnx(args.folder)
        if args.int8:
            onnx.quantize_onnx(args.folder)
    except OnnxMismatchError as error:
        raise OnnxMismatchError(f"{error} The rest of {args.folder} is whole.") from None
    if pairs is not None:
        scores = onnx.score_files(args.folder, pairs)
        print(f"{pairs.name}, Spearman x 100: " + ", ".join(f"{name} {score:.2f}" for name, score in scores.items()))
    write_card(args.folder)
    for path in published_files(args.folder):
        print(path.as_posix())
