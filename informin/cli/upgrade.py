"""Decide without labels what to do with the index of an old model when you have a new one.

The options: keep the old model, fit its index, bridge queries of the new model to it, or embed again.
"""

import argparse
from contextlib import ExitStack
from pathlib import Path

from informin import program
from informin.cli.model_options import add_model_options, add_text_options, model_options
from informin.errors import UsageError
from informin.jobs.text_files import read_texts
from informin.jobs.upgrade import upgrade
from informin.outputs import only_writer, refuse_existing
from informin.temporary import new_file


def main(argv: list[str] | None = None) -> int:
    """Compare the options. Returns the exit code: 0, 2 (usage), 130 (interrupted)."""
    parser = program.Parser(prog="informin upgrade", description=__doc__)
    add = parser.add_argument
    for name in ("old", "new"):
        add(name, metavar=name.upper(),
            help=f"The {name} model: Hub id or local folder. Or a file of its embeddings, .npy, .parquet or "
            ".safetensors, with the rows of informin compare --write_texts.")  # fmt: skip
    add_text_options(parser, required=True)
    add("--output", metavar="FILE.safetensors",
        help="Also write the bridge. Read it with informin.adapters.bridge.Bridge.load.")  # fmt: skip
    add("--max_texts", type=int, default=5_000, help="Compare on a random sample of at most this many texts.")
    add("--seed", type=int, default=0, help="Seed of the sample and of the held-out texts.")
    add_model_options(parser)
    args = parser.parse_args(argv)
    return program.exit_code(lambda: work(args), parser.option_names(), "Nothing was saved.")


def work(args: argparse.Namespace) -> None:
    """Read the texts, compare the options, print the decision, and save the bridge."""
    output = args.output
    if output:
        if Path(output).suffix != ".safetensors":
            raise UsageError(f"is {output}", option="output", needed="a name ending in .safetensors")
        refuse_existing(output, "output")
    with ExitStack() as writing:
        if output:
            writing.enter_context(only_writer(output, "output"))
        texts, source = read_texts(args.train_file, args.text_column)
        if source.blank:
            print(source.line())
        result = upgrade(args.old, args.new, texts, max_texts=args.max_texts, seed=args.seed, **model_options(args))
        print(result)
        if output:
            with new_file(output) as new:
                result.bridge.save(new)
            print(f'Saved. Read it with:\n  bridge = informin.adapters.bridge.Bridge.load("{output}")')
        elif result.bridge_is_best:
            print("Use --output to write the bridge.")
