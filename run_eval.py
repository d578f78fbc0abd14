"""Score sentence encoders on the 7 STS and 7 transfer tasks. See README.md, or `python run_eval.py --help`."""

from informin import program

if __name__ == "__main__":
    program.quiet_while_loading()
    program.answer_help("run_eval")

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from informin.encoders.encode import POOLERS
from informin.encoders.encoder import load_encoder
from informin.errors import UsageError
from informin.evaluation.results import load_results, results_files
from informin.evaluation.scoring import ALL_DIMENSIONS, Tasks, load_tasks, score_encoder, whitening_options
from informin.evaluation.senteval import TASKS, chosen_tasks
from informin.evaluation.senteval_files import senteval_folder
from informin.evaluation.table import FORMATS, aggregation_table, footnotes, render, samples, score_tables, time_table


def main(argv: list[str] | None = None) -> int:
    """Scores the models. Returns the exit code: 0, 1 (a score is undefined), 2 (usage), 130 (interrupted)."""
    options = parser()
    args = options.parse_args(argv)
    kept = f"The finished tasks are in {args.output}; the same command goes on." if args.output else "Nothing is kept."
    return program.exit_code(lambda: evaluate(args), options.option_names(), kept)


def parser() -> program.Parser:
    """The options."""
    parser = program.Parser(description=__doc__)
    add = parser.add_argument
    add("--model_name", nargs="+", required=True, metavar="MODEL", help="Hub ids or folders; a row each.")
    add("--tasks", nargs="+", metavar="TASK",
        help=f"all (default; none with labels or triplets), sts, transfer, or of: {', '.join(TASKS)}.")  # fmt: skip
    add("--labels", nargs="+", default=[], metavar="FILE",
        help="Labelled samples, a task each: TSV, CSV or JSONL with text and label. V-measure, nearest neighbours, "
        "8 shots.")  # fmt: skip
    add("--triplets", nargs="+", default=[], metavar="FILE",
        help="Searches, a task each: TSV, CSV or JSONL with query, document and, if you like, negative.")  # fmt: skip
    add("--pooler", nargs="+", default=["auto"], metavar="POOLER", choices=["auto", *POOLERS],
        help=f"auto (what the checkpoint says) or of: {', '.join(POOLERS)}; a row each, in one pass.")  # fmt: skip
    add("--prompt", metavar="TEXT",
        help="Put before every sentence; '' for none. Default: the checkpoint's own.")  # fmt: skip
    add("--senteval_dir", help="SentEval's data/downstream. Default: $SENTEVAL_DATA, else senteval.tar from the Hub.")
    add("--split", choices=["test", "dev"], default="test", help="dev: STS-B, SICK-R and what C is chosen by.")
    add("--max_length", type=int, help="Cut sentences at this many tokens. Default: the checkpoint's maximum.")
    add("--batch_size", type=int, default=64, help="Sentences a forward pass.")
    add("--device", help="cpu, cuda, cuda:1, mps. Default: a GPU where there is one.")
    add("--bf16", action="store_true", help="Encode under bfloat16 autocast.")
    add("--whitening", nargs="?", type=int, const=ALL_DIMENSIONS, metavar="K",
        help="Whiten the embeddings and keep K dimensions (all without K).")  # fmt: skip
    add("--whitening_file", metavar="FILE", help="Fit on these sentences. Default: on each task's own, labels unseen.")
    add("--output", help="Keep the results here and go on from them: FILE.json for one row, a folder for several.")
    add("--format", choices=FORMATS, default="text", help="Of the tables that are printed.")
    add("--compare", nargs="+", metavar="OTHER",
        help="Results files, or folders of them: one for all rows, or one for each. Adds the differences.")  # fmt: skip
    add("--seeds", action="store_true", help="The models are seeds of one recipe: adds mean ± sd.")
    return parser


def evaluate(args: argparse.Namespace) -> int:
    """Every model in turn, then the tables."""
    outputs = output_paths(args)
    others = others_of(args)
    asked = args.tasks or ([] if args.labels or args.triplets else ["all"])
    names = chosen_tasks(asked, args.split)
    whitening = whitening_options(args.whitening, args.whitening_file)
    folder = senteval_folder(args.senteval_dir) if names else None
    tasks = load_tasks(folder, names, args.split, args.labels, args.triplets)
    refuse_other_samples(others, tasks)
    how = (args.pooler, args.max_length, args.batch_size, args.device, args.bf16)
    for model_name in args.model_name[1:]:
        load_encoder(model_name, *how, prompt=args.prompt)  # a mistake in the last is found before the first is scored
    rows = []
    for model_name in args.model_name:
        encoder = load_encoder(model_name, *how, prompt=args.prompt)
        kept = outputs and {pooler: outputs(model_name, pooler) for pooler in encoder.poolers}
        rows += score_encoder(encoder, tasks, whitening, kept)
    show([results | {"tasks": {name: results["tasks"][name] for name in tasks.data}} for results in rows], others, args)
    return 1 if any(results["tasks"][name]["score"] is None for results in rows for name in tasks.data) else 0


def output_paths(args: argparse.Namespace) -> Callable[[str, str], Path] | None:
    """From model and pooler to their results' file; None without --output. Raises UsageError where rows share one."""
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
    dimensions = "" if args.whitening == ALL_DIMENSIONS else args.whitening
    whitening = "" if args.whitening is None else f"-whitening{dimensions}"
    split = "" if args.split == "test" else f"-{args.split}"
    return lambda model_name, pooler: Path(args.output, f"{Path(model_name).name}-{pooler}{whitening}{split}.json")


def others_of(args: argparse.Namespace) -> list[dict]:
    """The results that --compare names, in order.

    Raises:
        UsageError: they are not one for all rows, or one for each; or they are of another split.
    """
    others = [load_results(path) for given in args.compare or [] for path in results_files(given)]
    rows = len(args.model_name) * len(args.pooler)
    if len(others) not in (0, 1, rows):
        raise UsageError(f"--compare: found {len(others)} results; needed 1, or one for each row ({rows}).")
    for other in others:
        if other["split"] != args.split:
            raise UsageError(f"--compare: {other['model']} was scored on the {other['split']} split, not {args.split}.")
    return others


def refuse_other_samples(others: list[dict], tasks: Tasks) -> None:
    """Raises UsageError where --compare names results of another file of the same name."""
    for other in others:
        for name, entry in samples(other).items():
            if name in tasks.data and [*entry["data"].values()] != [*tasks.checksums[name].values()]:
                raise UsageError(f"--compare: {other['model']} was scored on another {name}. Score it on this file.")


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
    program.run(main)
