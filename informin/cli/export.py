"""Export a checkpoint as a folder to use or publish."""

import argparse

from informin import program
from informin.errors import OnnxMismatchError, UsageError
from informin.evaluation import load_stsb_dev
from informin.evaluation.senteval_files import senteval_folder
from informin.outputs import new_folder, only_writer
from informin.publishing import onnx
from informin.publishing.card import write_card
from informin.publishing.export import DTYPES, export_checkpoint
from informin.publishing.published import published_files


def main(argv: list[str] | None = None) -> int:
    """Export a checkpoint. Returns the exit code: 0, 1 (the ONNX file is wrong), 2 (usage), 130 (interrupted)."""
    parser = program.Parser(prog="informin export", description=__doc__)
    add = parser.add_argument
    add("checkpoint", help="Folder of a checkpoint (checkpoint-N), or an exported folder.")
    add("folder", help="Folder to write; must be new or empty.")
    add("--dtype", choices=DTYPES, default="float32", help="Data type of the weights. Default: float32.")
    add("--onnx", action="store_true", help="Also write onnx/model.onnx, in float32.")
    add("--int8", action="store_true",
        help="With --onnx, also write onnx/model_quantized.onnx, and print the STS-B dev scores of both.")  # fmt: skip
    add("--senteval_dir",
        help="With --int8: SentEval's data/downstream, for STS-B dev. Default: $SENTEVAL_DATA or the Hub.")  # fmt: skip
    args = parser.parse_args(argv)
    return program.exit_code(lambda: export(args), parser.option_names())


def export(args: argparse.Namespace) -> None:
    """Export the folder, add the ONNX files, and print the list of files."""
    if args.int8 and not args.onnx:
        raise UsageError("is set without `onnx`", option="int8", fix="Set both.")
    pairs = load_stsb_dev(senteval_folder(args.senteval_dir)) if args.int8 else None
    if args.onnx:
        onnx.require_packages()
        onnx.refuse_unsupported(args.checkpoint, scored=args.int8)
    mismatch = None
    with only_writer(args.folder), new_folder(args.folder) as new:
        export_checkpoint(args.checkpoint, new, args.dtype)
        try:
            if args.onnx:
                onnx.export_onnx(new)
            if args.int8:
                onnx.quantize_onnx(new)
            if pairs is not None:
                scores = [f"{name} {score:.2f}" for name, score in onnx.score_files(new, pairs).items()]
                print(f"{pairs.name}, Spearman x 100: {', '.join(scores)}")
            write_card(new)
        except OnnxMismatchError as error:
            mismatch = error
    if mismatch:
        raise OnnxMismatchError(f"{mismatch} The other files of {args.folder} are complete.")
    for path in published_files(args.folder):
        print(path.as_posix())
