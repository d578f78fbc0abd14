"""Score encoders on STS and transfer tasks, labeled sentences and retrieval."""

import argparse

from informin import program
from informin.cli.collections import is_collection, search
from informin.cli.eval_output import output_paths
from informin.cli.processes import processes
from informin.cli.texts import add_backend_options, backend_of, sides_of
from informin.distributed import first_only
from informin.errors import UsageError
from informin.evaluation.report import load_others, refuse_other_samples, show, write_report
from informin.evaluation.results import load_all_results
from informin.evaluation.scoring import ALL_DIMENSIONS, load_tasks, score_encoder, whitening_options
from informin.evaluation.senteval import TASKS, chosen_tasks
from informin.evaluation.senteval_files import senteval_folder
from informin.evaluation.table import FORMATS
from informin.models.encode import POOLERS
from informin.models.open_model import load_model
from informin.outputs import only_writers


def main(argv: list[str] | None = None) -> int:
    """Score the models. Returns the exit code: 0, 1 (a score is undefined), 2 (usage), 130 (interrupted)."""
    options = parser()
    args = options.parse_args(argv)
    kept = f"Finished tasks are in {args.output}. The same command resumes." if args.output else "Nothing was saved."
    return program.exit_code(lambda: joined(args), options.option_names(), kept)


def parser() -> program.Parser:
    """Return the parser."""
    parser = program.Parser(prog="informin eval", description=__doc__)
    add = parser.add_argument
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--model_name", nargs="+", metavar="MODEL", help="Hub ids or folders, one row each.")
    given.add_argument("--report", nargs="+", metavar="RESULTS",
        help="Print the tables of these results files, folders or summary.json without scoring. --output FOLDER also "
        "writes FOLDER/table.md and FOLDER/summary.json.")  # fmt: skip
    add("--tasks", nargs="+", metavar="TASK",
        help=f"all (default if no files are given), sts, transfer, or names: {', '.join(TASKS)}.")  # fmt: skip
    add("--labels", nargs="+", default=[], metavar="FILE",
        help="Labeled files, one task each: TSV, CSV or JSONL with columns text and label. Reports V-measure, nearest "
        "neighbors and 8-shot accuracy.")  # fmt: skip
    add("--retrieval", nargs="+", default=[], metavar="PATH",
        help="Test collections: folders in BEIR's layout (corpus.jsonl, queries.jsonl, qrels/test.tsv) or with "
        "corpus.tsv, queries.tsv and qrels.tsv, or names of mteb tasks. Or files (TSV, CSV, JSONL) with columns query, "
        "document and optionally relevance (or score) and negative, one task each.")  # fmt: skip
    add("--bm25", action="store_true",
        help="With a test collection: add BM25 and its rank fusion with the first model. Needs bm25s.")  # fmt: skip
    add("--pooler", nargs="+", default=["auto"], metavar="POOLER", choices=["auto", *POOLERS],
        help=f"auto (stored in the checkpoint) or: {', '.join(POOLERS)}; one row each.")  # fmt: skip
    add("--prompt", metavar="TEXT",
        help="Prefix for every sentence; '' for none. Default: stored in the checkpoint.")  # fmt: skip
    add("--query_prompt", metavar="TEXT",
        help="Prefix for queries of --retrieval. Default: --prompt, or the stored prompt named query.")  # fmt: skip
    add("--document_prompt", metavar="TEXT",
        help="The same for documents. Default: --prompt, or the prompt named document or passage.")  # fmt: skip
    add("--senteval_dir", help="SentEval's data/downstream. Default: $SENTEVAL_DATA, or senteval.tar from the Hub.")
    add("--split", choices=["test", "dev"], default="test", help="dev: STS-B, SICK-R and the accuracy that selects C.")
    add("--max_length", type=int, help="Truncate to this number of tokens. Default: the checkpoint's maximum.")
    add("--batch_size", type=int, default=64, help="Sentences per forward pass.")
    add("--device", help="cpu, cuda, cuda:1, mps. Default: GPU if available.")
    add("--bf16", action="store_true", help="Encode under bfloat16 autocast.")
    add_backend_options(parser)
    add("--whitening", nargs="?", type=int, const=ALL_DIMENSIONS, metavar="K",
        help="Whiten the embeddings and keep K dimensions. Default without K: all.")  # fmt: skip
    add("--whitening_file", metavar="FILE", help="Sentences to fit the whitening on. Default: each task's own.")
    add("--output", help="Save results here and resume from them: FILE.json for one row, a folder for several.")
    add("--format", choices=FORMATS, default="text", help="Format of the printed tables.")
    add("--compare", nargs="+", metavar="OTHER",
        help="Results files or folders to subtract: one for all rows, or one per row.")  # fmt: skip
    add("--seeds", action="store_true", help="Treat the models as seeds of one recipe: adds mean ± sd.")
    return parser


def joined(args: argparse.Namespace) -> int | None:
    """Score with all processes of `accelerate launch`."""
    with processes("Run the same command again."):
        return evaluate(args)


def evaluate(args: argparse.Namespace) -> int | None:
    """Score every model, then print the tables."""
    if args.report:
        report(args)
        return None
    for option in ("query_prompt", "document_prompt"):
        if getattr(args, option) is not None and not args.retrieval:
            raise UsageError("has no effect without `retrieval`", option=option)
    collections = [path for path in args.retrieval if is_collection(path)]
    if collections:
        search(args, collections)
        args.retrieval = [path for path in args.retrieval if path not in collections]
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
    more = {"prompt": args.prompt, **backend_of(args)}
    for model_name in args.model_name[1:]:
        load_model(model_name, *how, **more)  # report a wrong name before scoring the first model
    rows = []
    for model_name in args.model_name:
        encoder = load_model(model_name, *how, **more)
        kept = outputs and {pooler: outputs(model_name, pooler) for pooler in encoder.poolers}
        sides = sides_of(encoder, args) if args.retrieval else None
        with first_only(only_writers((kept or {}).values())):
            rows += score_encoder(encoder, tasks, whitening, kept, sides)
    asked = [results | {"tasks": {name: results["tasks"][name] for name in tasks.data}} for results in rows]
    show(asked, others, args.seeds, args.format)
    return 1 if any(results["tasks"][name]["score"] is None for results in rows for name in tasks.data) else 0


def report(args: argparse.Namespace) -> None:
    """Print the tables of saved results."""
    rows = load_all_results(args.report)
    others = load_others(args.compare, len(rows), args.split)
    show(rows, others, args.seeds, args.format)
    if args.output:
        write_report(args.output, rows, others, args.seeds)
