"""Export a checkpoint as a folder to use or publish."""

import argparse
from os.path import expanduser

from informin import program
from informin.cli.options import add_output_dir


def main(argv: list[str] | None = None) -> int:
    """Export a checkpoint. Returns the exit code: 0, 1 (failure), 2 (usage), 130 (interrupted)."""
    parser = program.Parser(prog="informin export", description=__doc__)
    add = parser.add_argument
    add(
        "--model_name",
        required=True,
        type=expanduser,
        metavar="CHECKPOINT",
        help="Folder checkpoint-N, or an exported folder.",
    )
    add_output_dir(parser, "an exported folder")
    add(
        "--dtype",
        choices=["float32", "float16", "bfloat16"],
        default="float32",
        help="Data type of the weights. Default: %(default)s.",
    )
    add("--onnx", action="store_true", help="Also write onnx/model.onnx, in float32. Needs the extra onnx.")
    add("--int8", action="store_true", help="With --onnx: also write onnx/model_quantized.onnx.")
    args = parser.parse_args(argv)
    parser.check_needs(args, {"int8": "onnx"})
    return program.exit_code(lambda: work(args), parser.option_names(), "Nothing was written.")


def work(args: argparse.Namespace) -> None:
    """Export the folder, add the ONNX files, and print the list of files and which output of ONNX to take."""
    from informin.errors import raise_if_missing
    from informin.files import new_folder, raise_if_used

    if args.onnx:
        raise_if_missing("onnx", option="onnx")
    replaces = "modules.json" if args.overwrite_output_dir else None
    raise_if_used(args.output_dir, "output_dir", replaces=replaces)
    from informin.publishing.card import CARD, write_card
    from informin.publishing.export import export_checkpoint, published_files
    from informin.publishing.onnx import advice_for_clients, export_onnx, quantize_onnx

    with new_folder(args.output_dir, "output_dir", replaces=replaces) as folder:
        export_checkpoint(args.model_name, folder, args.dtype)
        if args.onnx:
            export_onnx(folder)
        if args.int8:
            quantize_onnx(folder)
        if (folder / CARD).is_file():
            write_card(folder)  # with the files that were added
    for path in published_files(args.output_dir):
        print(path.as_posix())
    if args.onnx:
        print(advice_for_clients(args.output_dir))
