"""The results files of `informin eval`."""

import argparse
from collections.abc import Callable
from pathlib import Path

from informin.distributed import on_first
from informin.errors import UsageError
from informin.evaluation.scoring import ALL_DIMENSIONS
from informin.outputs import refuse_unwritable


def output_paths(args: argparse.Namespace) -> Callable[[str, str], Path] | None:
    """Return a function from model and pooler to the results file; None without --output.

    Raises:
        UsageError: Several rows would share a file, or the folder cannot be written.
    """
    if not args.output:
        return None
    names = [Path(name).name for name in args.model_name]
    if args.output.endswith(".json"):
        if len(names) * len(args.pooler) > 1:
            raise UsageError(f"is {args.output}, one file for several rows", option="output", fix="Give a folder.")
        on_first(lambda: refuse_unwritable(args.output))
        return lambda model_name, pooler: Path(args.output)
    if len(set(names)) < len(names):
        raise UsageError(
            f"is {args.output}, but two models have the same folder name ({', '.join(names)})",
            option="output",
            fix="Rename one.",
        )
    on_first(lambda: refuse_unwritable(Path(args.output, "results")))
    dimensions = "" if args.whitening == ALL_DIMENSIONS else args.whitening
    whitening = "" if args.whitening is None else f"-whitening{dimensions}"
    split = "" if args.split == "test" else f"-{args.split}"
    return lambda model_name, pooler: Path(args.output, f"{Path(model_name).name}-{pooler}{whitening}{split}.json")
