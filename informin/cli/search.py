"""Search an index that `informin index` wrote: print the hits of a query, or open a page in the browser."""

import argparse
import json
from dataclasses import asdict

from informin import program


def main(argv: list[str] | None = None) -> int:
    """Search. Returns the exit code: 0, 1 (failure), 2 (usage), 130 (interrupted)."""
    parser = program.Parser(prog="informin search", description=__doc__)
    add = parser.add_argument
    add("query", nargs="?", help="What to search for. Default: open the search page.")
    add("--index", required=True, metavar="FOLDER", help="Folder of the index.")
    add("--model_name", metavar="MODEL", help="The model of the index, if it is no longer where it was.")
    add("--k", type=int, default=10, metavar="N", help="Number of hits. Default: %(default)s.")
    add("--format", choices=["text", "json"], default="text", help="Format of the hits. Default: %(default)s.")
    add("--host", default="127.0.0.1", help="Address of the page. 0.0.0.0 lets other machines reach it.")
    add("--port", type=int, help="Port of the page. Default: the first free one from 7860.")
    args = parser.parse_args(argv)
    return program.exit_code(lambda: work(args), parser.option_names())


def work(args: argparse.Namespace) -> None:
    """Open the index, and print the hits or serve the page until a signal."""
    from informin.search.index import Index

    index = Index.load(args.index, args.model_name)
    if args.query is None:
        from informin.demo.local import serve

        serve(index, args.host, args.port)
        return
    hits = index.search([args.query], args.k)[0]
    if args.format == "json":
        print(json.dumps([asdict(hit) for hit in hits], ensure_ascii=False, indent=1))
        return
    for rank, hit in enumerate(hits, start=1):
        unrelated = "  (may be unrelated)" if hit.relevant is False else ""
        print(f"{rank:>3}  {hit.score:6.2f}  vectors {hit.vector_score:.3f}  words {hit.word_score:5.2f}{unrelated}")
        print(f"     {' '.join(hit.text.split())}  [row {hit.row}]")
