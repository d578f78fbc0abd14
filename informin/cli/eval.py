"""Score sentence encoders on the 7 STS and 7 transfer tasks."""

import argparse
from collections.abc import Callable
from pathlib import Path

from informin import program
from informin.cli.collections import search
from informin.encoders.encode import POOLERS
from informin.encoders.encoder import load_encoder
from informin.errors import UsageError
from informin.evaluation.report import load_others, refuse_other_samples, show, write_report
from informin.evaluation.results import load_all_results
from informin.evaluation.scoring import ALL_DIMENSIONS, load_tasks, score_encoder, whitening_options
from informin.evaluation.senteval import TASKS, chosen_tasks
from informin.evaluation.senteval_files import senteval_folder
from informin.evaluation.table import FORMATS


def main(argv: list[str] | None = None) -> int:
    """Scores the models. Returns the exit code: 0, 1 (a score is undefined), 2 (usage), 130 (interrupted)."""
    options = parser()
    args = options.parse_args(argv)
    kept = f"The finished tasks are in {args.output}; the same command goes on." if args.output else "Nothing is kept."
    return program.exit_code(lambda: evaluate(args), options.option_names(), kept)


def parser() -> program.Parser:
    """The options."""
    parser = program.Parser(prog="informin eval", description=__doc__)
    add = parser.add_argument
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--model_name", nargs="+", metavar="MODEL", help="Hub ids or folders; a row each.")
    given.add_argument("--report", nargs="+", metavar="RESULTS",
        help="Score nothing: print the tables of these files, folders or summary.json. --output FOLDER also writes "
        "FOLDER/table.md, and FOLDER/summary.json with all results.")  # fmt: skip
    add("--tasks", nargs="+", metavar="TASK",
        help=f"all (default; none with labels or retrieval), sts, transfer, or of: {', '.join(TASKS)}.")  # fmt: skip
    add("--labels", nargs="+", default=[], metavar="FILE",
        help="Labeled samples, a task each: TSV, CSV or JSONL with text and label. V-measure, nearest neighbors, "
        "8 shots.")  # fmt: skip
    add("--retrieval", nargs="+", default=[], metavar="PATH",
        help="Test collections: folders in BEIR's layout (corpus.jsonl, queries.jsonl, qrels/test.tsv) or with "
        "corpus.tsv, queries.tsv and qrels.tsv. Or files (TSV, CSV, JSONL) with columns query, document and optionally "
        "negative, one task each.")  # fmt: skip
    add("--bm25", action="store_true",
        help="With a test collection: add BM25, and its rank fusion with the first model. Needs bm25s.")  # fmt: skip
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


def evaluate(args: argparse.Namespace) -> int | None:
    """Every model in turn, then the tables."""
    if args.report:
        return report(args)
    folders = [path for path in args.retrieval if Path(path).is_dir()]
    if folders:
        search(args, folders)
        args.retrieval = [path for path in args.retrieval if path not in folders]
        if not (args.tasks or args.labels or args.retrieval):
            return None
    elif args.bm25:
        raise UsageError("has no effect without a test collection in `retrieval`", option="bm25")
    outputs = output_paths(args)
    others = load_others(args.compare, len(args.model_name) * len(args.pooler), args.split)
    asked = args.tasks or ([] if args.labels or args.retrieval else ["all"])
    names = chosen_tasks(asked, args.split)
    whitening = whitening_options(args.whitening, args.whitening_file)
    folder = senteval_folder(args.senteval_dir) if names else None
    tasks = load_tasks(folder, names, args.split, args.labels, args.retrieval)
    refuse_other_samples(others, tasks)
    how = (args.pooler, args.max_length, args.batch_size, args.device, args.bf16)
    for model_name in args.model_name[1:]:
        load_encoder(model_name, *how, prompt=args.prompt)  # a mistake in the last is found before the first is scored
    rows = []
    for model_name in args.model_name:
        encoder = load_encoder(model_name, *how, prompt=args.prompt)
        kept = outputs and {pooler: outputs(model_name, pooler) for pooler in encoder.poolers}
        rows += score_encoder(encoder, tasks, whitening, kept)
    asked = [results | {"tasks": {name: results["tasks"][name] for name in tasks.data}} for results in rows]
    show(asked, others, args.seeds, args.format)
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


def report(args: argparse.Namespace) -> None:
    """The tables of results that are there."""
    rows = load_all_results(args.report)
    others = load_others(args.compare, len(rows), args.split)
    show(rows, others, args.seeds, args.format)
    if args.output:
        write_report(args.output, rows, others, args.seeds)
