"""Score encoders on STS and transfer tasks, labeled sentences and retrieval."""

import argparse
from dataclasses import replace
from typing import Any

from informin import program
from informin.cli.model_options import add_backend_options, model_options
from informin.cli.processes import processes
from informin.evaluation.result_tables import load_others
from informin.evaluation.results import load_all_results
from informin.evaluation.scoring import ALL_DIMENSIONS
from informin.evaluation.senteval import TASKS
from informin.evaluation.table import FORMATS
from informin.jobs.collections import is_collection
from informin.jobs.evaluate import Evaluation, evaluate
from informin.models.encode import POOLERS


def main(argv: list[str] | None = None) -> int:
    """Score the models. Returns the exit code: 0, 1 (a score is undefined), 2 (usage), 130 (interrupted)."""
    options = parser()
    args = options.parse_args(argv)
    finished = f"Finished tasks are in {args.output}. Run the same command again to resume."
    kept = finished if args.output else "Nothing was saved."
    return program.exit_code(lambda: work(args), options.option_names(), kept)


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
        help="Labeled files, one task each: TSV, CSV or JSONL with columns text and label. Rows without either are "
        "skipped. Reports V-measure, nearest neighbors and 8-shot accuracy.")  # fmt: skip
    add("--text_column", metavar="NAME[,NAME...]",
        help="Column of --labels with the texts, or several to join, such as subject,body. Default: text.")  # fmt: skip
    add("--label_column", metavar="NAME", help="Column of --labels with the labels. Default: label.")
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
    add("--split", choices=["test", "dev"], default="test", help="dev: STS-B, SICK-R, transfer validation accuracy.")
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


def work(args: argparse.Namespace) -> int | None:
    """Score every model and print the tables, or print those of saved results. Returns 1 if a score is undefined."""
    names = ("senteval_dir", "split", "whitening", "whitening_file", "output")
    how: dict[str, Any] = {name: getattr(args, name) for name in names} | dict(model_options(args))
    how["compare"] = args.compare or ()
    prompts = {"query_prompt": args.query_prompt, "document_prompt": args.document_prompt}
    with processes("Run the same command again."):
        if args.report:
            rows = load_all_results(args.report)
            saved = Evaluation(rows, load_others(how["compare"], len(rows), how["split"]))
            print(saved.table(args.format, seeds=args.seeds))
            if args.output:
                saved.save(args.output, seeds=args.seeds)
            return None
        collections = [path for path in args.retrieval if is_collection(path)]
        files = [path for path in args.retrieval if path not in collections]
        first = Evaluation([])
        if collections:
            first = evaluate(args.model_name, retrieval=collections, bm25=args.bm25, **prompts, **how)
            alone = not (args.tasks or args.labels or files)
            if alone or args.format != "json":  # JSON is one document; tables need not wait for the tasks
                print(first.table(args.format))
            if alone:
                return None
        else:
            how["bm25"] = args.bm25
        how |= prompts if files or not collections else {}
        how |= {"labels": args.labels, "text_column": args.text_column, "label_column": args.label_column}
        result = evaluate(args.model_name, tasks=args.tasks or (), retrieval=files, **how)
        if args.format == "json":
            result = replace(result, collections=first.collections, notes=first.notes)
        print(result.table(args.format, seeds=args.seeds))
        return 1 if any(score is None for row in result.scores.values() for score in row.values()) else 0
