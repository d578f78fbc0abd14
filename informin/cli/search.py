"""Search an index that `informin index` wrote: print the hits of a query, or open a page in the browser."""

import argparse
import json
import re
import sys
from dataclasses import asdict
from os.path import expanduser
from typing import TYPE_CHECKING

from informin import program

if TYPE_CHECKING:
    from informin.frozen.index_search import Hit

EXCERPT = 600  # characters of a text that are printed
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def main(argv: list[str] | None = None) -> int:
    """Search. Returns the exit code: 0, 1 (failure), 2 (usage), 130 (interrupted)."""
    parser = program.Parser(prog="informin search", description=__doc__)
    add = parser.add_argument
    add("query", nargs="*", help="What to search for. Default: open the search page, which needs the extra demo.")
    add("--index", required=True, type=expanduser, metavar="FOLDER", help="Folder of the index.")
    add("--model_name", type=expanduser, metavar="MODEL", help="Path of the index's model, if it was moved.")
    add("--trust_remote_code", action="store_true", help="Run code from the model's repository, if it needs any.")
    add("--k", type=int, default=10, metavar="N", help="Number of hits. Default: %(default)s.")
    add("--format", choices=["text", "json"], default="text", help="Format of the hits. Default: %(default)s.")
    add(
        "--host",
        default="127.0.0.1",
        help="Address of the page. 0.0.0.0 lets other machines reach it. Default: %(default)s.",
    )
    add("--port", type=int, help="Port of the page. Default: the first free one from 7860.")
    args = parser.parse_args(argv)
    if args.query:
        parser.check_unused(args, ("host", "port"), "with a query")
    else:
        parser.check_unused(args, ("k", "format"), "without a query")
    return program.exit_code(lambda: work(args), parser.option_names())


def work(args: argparse.Namespace) -> None:
    """Open the index, and print the hits or serve the page until a signal."""
    from informin.errors import UsageError
    from informin.frozen.index import Index
    from informin.texts import is_blank

    query = " ".join(args.query)
    if args.query and is_blank(query):
        raise UsageError("The query is blank", fix="Give the words to search for.")
    index = Index.load(args.index, args.model_name, trust_remote_code=args.trust_remote_code)
    if not args.query:
        from informin.frozen.search_page import serve

        serve(index, args.host, args.port)
        return
    hits = index.search(query, args.k)
    if args.format == "json":
        is_unicode = getattr(sys.stdout, "encoding", "utf-8").lower().startswith("utf")
        print(json.dumps([asdict(hit) for hit in hits], ensure_ascii=not is_unicode, indent=1))
        return
    for rank, hit in enumerate(hits, start=1):
        print(shown(rank, hit))


def shown(rank: int, hit: "Hit") -> str:
    """Return the lines that show a hit."""
    unrelated = "  (may be unrelated)" if hit.relevant is False else ""
    tokens = "" if hit.token_score is None else f"  tokens {hit.token_score:.3f}"
    parts = f"vectors {hit.vector_score:.3f}  words {hit.word_score:5.2f}{tokens}"
    scores = f"{rank:>3}  {hit.score:6.2f}  {parts}{unrelated}"
    origin = f"row {hit.row}" if hit.id is None else f"row {hit.row}, id {hit.id}"
    lines = [scores, f"     {excerpt(hit.text)}  [{origin}]"]
    lines += [f"     {name}: {excerpt(str(value))}" for name, value in hit.shown_fields.items()]
    return "\n".join(lines)


def excerpt(text: str) -> str:
    """Return the beginning of a text in one line, without control characters, which could change the terminal."""
    line = CONTROL.sub("\ufffd", " ".join(text.split()))
    if len(line) <= EXCERPT:
        return line
    return f"{line[:EXCERPT].rstrip()} ... ({len(text):,} characters)"
