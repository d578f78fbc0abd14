"""Score sentence encoders on the 7 STS and 7 transfer tasks. See README.md, or `python run_eval.py --help`."""

import argparse
import hashlib
import json
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import transformers

from informin.data import SENTEVAL_INSTEAD, senteval_folder
from informin.encoder import load_encoder
from informin.encoding import POOLERS
from informin.errors import UsageError
from informin.evaluation.results import load_results, results_files
from informin.evaluation.senteval import TASKS, chosen_tasks
from informin.evaluation.table import FORMATS, aggregation_table, footnotes, render, score_tables, time_table
from informin.scoring import WhiteningOptions, load_tasks, score_encoder
from informin.textfiles import read_sentences


def main(argv: list[str] | None = None) -> int:
    """Scores the models. Returns the exit code: 0, 1 (a score is undefined), 2 (usage), 130 (interrupted)."""
    try:
        return evaluate(parser().parse_args(argv))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted. With --output the finished tasks are kept; the same command goes on.", file=sys.stderr)
        return 128 + signal.SIGINT


def parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--model_name", nargs="+", required=True, metavar="MODEL", help="Hub ids or folders; a row each.")
    add("--tasks", nargs="+", default=["all"], metavar="TASK", help=f"all, sts, transfer, or of: {', '.join(TASKS)}.")
    add("--pooler", nargs="+", default=["auto"], metavar="POOLER", choices=["auto", *POOLERS],
        help=f"auto (what the checkpoint says) or of: {', '.join(POOLERS)}; a row each, in one pass.")  # fmt: skip
    add("--data_dir", help="SentEval's data/downstream. Default: $SENTEVAL_DATA, else senteval.tar from the Hub.")
    add("--split", choices=["test", "dev"], default="test", help="dev: STS-B, SICK-R and what C is chosen by.")
    add("--max_length", type=int, help="Cut sentences at this many tokens. Default: the checkpoint's maximum.")
    add("--batch_size", type=int, default=64, help="Sentences a forward pass.")
    add("--device", help="cpu, cuda, cuda:1, mps. Default: a GPU where there is one.")
    add("--bf16", action="store_true", help="Encode under bfloat16 autocast.")
    add("--whitening", nargs="?", type=int, const=0, metavar="K",
        help="Whiten the embeddings and keep K dimensions (all without K).")  # fmt: skip
    add("--whitening_file", metavar="FILE", help="Fit on these sentences. Default: on each task's own, labels unseen.")
    add("--output", help="Keep the results here and go on from them: FILE.json for one row, a folder for several.")
    add("--format", choices=FORMATS, default="text", help="Of the tables that are printed.")
    add("--compare", metavar="OTHER", help="A results file, or a folder with one for each row: adds the differences.")
    add("--seeds", action="store_true", help="The models are seeds of one recipe: adds mean ± sd.")
    return parser


def evaluate(args: argparse.Namespace) -> int:
    """Every model in turn, then the tables."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("informin").setLevel(logging.INFO)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    outputs = output_paths(args)
    others = [load_results(path) for path in results_files(args.compare)] if args.compare else []
    rows_expected = len(args.model_name) * len(args.pooler)
    if len(others) not in (0, 1, rows_expected):
        raise UsageError(
            f"--compare: {args.compare} holds {len(others)} results; needed 1, or one for each row ({rows_expected})."
        )
    names = chosen_tasks(args.tasks, args.split)
    tasks = load_tasks(senteval_folder(args.data_dir, SENTEVAL_INSTEAD), names, args.split)
    whitening = whitening_options(args)
    rows = []
    for model_name in args.model_name:
        encoder = load_encoder(model_name, args.pooler, args.max_length, args.batch_size, args.device, args.bf16)
        kept = outputs and {pooler: outputs(model_name, pooler) for pooler in encoder.poolers}
        rows += score_encoder(encoder, tasks, whitening, kept)
    show(rows, others, args)
    return 1 if any(results["tasks"][name]["score"] is None for results in rows for name in names) else 0


def output_paths(args: argparse.Namespace) -> Callable[[str, str], Path] | None:
    """From model and pooler to the file that keeps their results; None without --output.

    Raises:
        UsageError: several rows would share a file.
    """
    if not args.output:
        return None
    names = [Path(name).name for name in args.model_name]
    if args.output.endswith(".json"):
        if len(names) * len(args.pooler) > 1:
            raise UsageError(f"--output {args.output}: several rows need a file each. Give a folder.")
        return lambda model_name, pooler: Path(args.output)
    if len(set(names)) < len(names):
        raise UsageError(
            f"--output {args.output}: two models have the same last name ({', '.join(names)}). Rename one."
        )
    whitening = "" if args.whitening is None else f"-whitening{args.whitening or ''}"
    split = "" if args.split == "test" else f"-{args.split}"
    return lambda model_name, pooler: Path(args.output, f"{Path(model_name).name}-{pooler}{whitening}{split}.json")


def whitening_options(args: argparse.Namespace) -> WhiteningOptions | None:
    """What --whitening and --whitening_file ask for.

    Raises:
        UsageError: a file without --whitening, or none that can be read.
    """
    if args.whitening is None:
        if args.whitening_file:
            raise UsageError("--whitening_file has no effect without --whitening.")
        return None
    if args.whitening_file is None:
        return WhiteningOptions(args.whitening or None)
    path = Path(args.whitening_file)
    if not path.is_file():
        raise UsageError(f"--whitening_file: {path} does not exist.")
    sentences = [sentence for sentence in read_sentences(path, None) if sentence.strip()]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return WhiteningOptions(args.whitening or None, sentences, f"{path.name} (SHA-256 {digest})")


def show(rows: list[dict], others: list[dict], args: argparse.Namespace) -> None:
    """Prints the tables, or with --format json the results themselves."""
    if args.format == "json":
        print(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    tables = score_tables(rows, others, args.seeds)
    if args.format == "text":
        tables += [*aggregation_table(rows), time_table(rows)]
    print("\n\n".join(render(table, args.format) for table in tables))
    for note in footnotes(rows):
        print(f"% {note}" if args.format == "latex" else f"\n{note}")


if __name__ == "__main__":
    sys.exit(main())
