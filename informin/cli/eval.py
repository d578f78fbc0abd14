"""Score models on STS and transfer tasks, labeled texts and retrieval."""

import argparse
import logging
from os.path import expanduser
from typing import TYPE_CHECKING

from informin import program
from informin.cli.options import MODEL_OPTIONS, add_model_options, model_options
from informin.program import processes

if TYPE_CHECKING:
    from informin.frozen.rankings import SearchRankings

logger = logging.getLogger(__name__)

TASK_OPTIONS = (
    "tasks",
    "labels",
    "text_column",
    "label_column",
    "retrieval",
    "query_prompt",
    "document_prompt",
    "senteval_dir",
    "split",
    "whitening",
    "output",
    "compare",
)
RANKING_OPTIONS = ("bm25", "language")
NEEDS = {name: "labels" for name in ("text_column", "label_column")} | {
    name: "retrieval" for name in (*RANKING_OPTIONS, "query_prompt", "document_prompt")
}  # what an option has no effect without
# Options that have no effect on saved results.
UNUSED_BY_REPORT = [
    name for name in TASK_OPTIONS + RANKING_OPTIONS + MODEL_OPTIONS if name not in ("split", "output", "compare")
]


def main(argv: list[str] | None = None) -> int:
    """Score the models. Returns the exit code: 0, 1 (a score is undefined), 2 (usage), 130 (interrupted)."""
    options = parser()
    args = options.parse_args(argv)
    options.check_needs(args, NEEDS)
    if args.report:
        options.check_unused(args, UNUSED_BY_REPORT, "with --report")
    finished = f"Finished tasks are in {args.output}. Run the same command again to resume."
    kept = finished if args.output else "Nothing was saved."
    return program.exit_code(lambda: work(args), options.option_names(), kept)


def parser() -> program.Parser:
    """Return the parser."""
    parser = program.Parser(prog="informin eval", description=__doc__)
    add_scored(parser)
    add_tasks(parser)
    add_retrieval(parser)
    add_embeddings(parser)
    add_results(parser)
    return parser


def add_scored(parser: program.Parser) -> None:
    """Add the options that name what is scored, or saved results to print."""
    scored = parser.add_mutually_exclusive_group(required=True)
    scored.add_argument(
        "--model_name", nargs="+", type=expanduser, metavar="MODEL", help="Hub ids or folders, one row each."
    )
    scored.add_argument(
        "--report",
        type=expanduser,
        nargs="+",
        metavar="RESULTS",
        help="Print the tables of these results files or folders without scoring. --output FOLDER also writes them to "
        "FOLDER/table.md, with the results.",
    )


def add_tasks(parser: program.Parser) -> None:
    """Add the options of SentEval's tasks and of labeled files."""
    add = parser.add_argument
    add(
        "--tasks",
        nargs="+",
        default=[],
        metavar="TASK",
        help="all (default if no files are given), sts, transfer, or names such as STS12, STSB, MR, TREC.",
    )
    add(
        "--senteval_dir",
        type=expanduser,
        metavar="FOLDER",
        help="SentEval's data/downstream. Default: $SENTEVAL_DATA, or senteval.tar from the Hub.",
    )
    add(
        "--split",
        choices=["test", "dev"],
        default="test",
        help="dev: STS-B, SICK-R, transfer validation accuracy. Default: %(default)s.",
    )
    add(
        "--labels",
        type=expanduser,
        nargs="+",
        default=[],
        metavar="FILE",
        help="Labeled files, one task each: TSV, CSV or JSONL with columns text and label. Rows without either are "
        "skipped. Reports V-measure, nearest neighbors and 8-shot accuracy.",
    )
    add(
        "--text_column",
        metavar="NAME[,NAME...]",
        help="Column of --labels with the texts, or several to join, such as subject,body. Default: text.",
    )
    add("--label_column", metavar="NAME", help="Column of --labels with the labels. Default: label.")


def add_retrieval(parser: program.Parser) -> None:
    """Add the options of test collections."""
    add = parser.add_argument
    add(
        "--retrieval",
        type=expanduser,
        nargs="+",
        default=[],
        metavar="PATH",
        help="Test collections: folders in BEIR's layout (corpus.jsonl, queries.jsonl, qrels/test.tsv) or with "
        "corpus.tsv, queries.tsv and qrels.tsv. Or files (TSV, CSV, JSONL) with columns query, document and optionally "
        "relevance (or score) and negative, one task each.",
    )
    add("--bm25", action="store_true", help="With --retrieval: also the rank fusion of BM25 and each model.")
    add(
        "--language",
        default="english",
        help="Language of BM25 in --retrieval: english or en, german or de, ...; `other` for neither stems nor stop "
        "words. Default: %(default)s.",
    )
    add(
        "--query_prompt",
        metavar="TEXT",
        help="Prompt for queries of --retrieval. Default: --prompt, or the model's prompt for queries.",
    )
    add(
        "--document_prompt",
        metavar="TEXT",
        help="Prompt for documents. Default: --prompt, or the model's prompt for documents.",
    )


def add_embeddings(parser: program.Parser) -> None:
    """Add the options of how the models embed."""
    parser.add_argument(
        "--whitening",
        nargs="?",
        type=int,
        const=float("inf"),
        metavar="K",
        help="Whiten the embeddings of each task and keep K dimensions. Default without K: all.",
    )
    parser.add_argument(
        "--pooler",
        nargs="+",
        default=["auto"],
        metavar="POOLER",
        help="auto (as the model specifies), cls, mean, last, first_last, embeddings_last, last2 or mlp; one row each. "
        "Default: auto.",
    )
    add_model_options(parser)


def add_results(parser: program.Parser) -> None:
    """Add the options of saved results and of the printed tables."""
    add = parser.add_argument
    add(
        "--output",
        type=expanduser,
        metavar="PATH",
        help="Save results here and resume from them: FILE.json for one row, a folder for several.",
    )
    add(
        "--format",
        choices=["text", "markdown", "latex", "json"],
        default="text",
        help="Format of the printed tables. Default: %(default)s.",
    )
    add(
        "--compare",
        type=expanduser,
        nargs="+",
        default=[],
        metavar="OTHER",
        help="Results files or folders to subtract: one for all rows, or one per row.",
    )
    add("--seeds", action="store_true", help="Treat the models as seeds of one recipe: adds mean ± sd.")


def work(args: argparse.Namespace) -> int:
    """Score every model and print the tables, or print those of saved results. Returns 1 if a score is undefined."""
    if args.report:
        report(args)
        return 0
    from informin.hub import raise_if_not_found

    for name in args.model_name or []:
        raise_if_not_found(name, args.revision)
    rankings = search_rankings(args) if args.retrieval else None
    from informin.evaluation.evaluate import evaluate

    with processes():
        chosen = {name: getattr(args, name) for name in TASK_OPTIONS} | {"rankings": rankings}
        result = evaluate(args.model_name, **chosen, **model_options(args))
        print(result.table(args.format, seeds=args.seeds))
    return int(any(score is None for row in result.scores.values() for score in row.values()))


def search_rankings(args: argparse.Namespace) -> "SearchRankings | None":
    """Return the rankings of an index; None without the extra `search`, unless an option needs it."""
    from informin.errors import missing_packages, raise_if_missing

    if args.bm25 or args.language != "english":
        raise_if_missing("search", option="bm25" if args.bm25 else "language")
    if missing := missing_packages("search"):
        logger.warning(f"Retrieval is scored without BM25, because {missing[0]} is not installed (extra `search`).")
        return None
    from informin.frozen.rankings import SearchRankings

    return SearchRankings(args.language, args.bm25)


def report(args: argparse.Namespace) -> None:
    """Print the tables of saved results, and save them in a folder."""
    from informin.evaluation.evaluate import Evaluation
    from informin.evaluation.results import load_all_results
    from informin.evaluation.table import load_others

    rows = load_all_results(args.report)
    saved = Evaluation(rows, load_others(args.compare, len(rows), args.split))
    print(saved.table(args.format, seeds=args.seeds))
    if args.output:
        saved.save(args.output, seeds=args.seeds)
