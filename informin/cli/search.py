"""Search sentences in your browser with one model, or compare two. Ctrl-C stops the page."""

import argparse

from informin import program
from informin.cli.model_options import add_model_options, model_options
from informin.demo.load import load_search
from informin.demo.page import build_page, require_gradio, serve
from informin.demo.server import LOCAL, wait
from informin.errors import counted
from informin.jobs.models import load_model
from informin.labeled_sentences import load_labeled_sentences


def main(argv: list[str] | None = None) -> int:
    """Serve the page. Returns the exit code: 2 (usage), 130 (interrupted)."""
    parser = program.Parser(prog="informin search", description=__doc__)
    add = parser.add_argument
    add("model", metavar="MODEL", help="Hub id or local folder.")
    add("other", nargs="?", metavar="OTHER", help="A second model to compare, such as the same one after training.")
    add("--train_file", required=True, metavar="FILE",
        help="Sentences to search: text (one per line), CSV, TSV, JSONL or Parquet; also .gz, .xz, .zst. A column "
        "`label` colors the map.")  # fmt: skip
    add("--text_column", metavar="NAME[,NAME...]",
        help="Column with the sentences, or several to join, such as subject,body. Default: `text`, or the only "
        "column.")  # fmt: skip
    add("--embeddings", nargs="+", metavar="FILE.npy",
        help="One file per model with the vectors of `informin embed`. Written if they do not exist. Default: a cache "
        "in HF_HOME.")  # fmt: skip
    add("--host", default=LOCAL, help="Address to listen on. 0.0.0.0 lets other machines reach the page.")
    add("--allowed_hosts", nargs="+", default=[], metavar="NAME",
        help="Other host names under which the page is opened, such as that of a reverse proxy. All others are "
        "refused.")  # fmt: skip
    add("--port", type=int, help="Port. Default: the first free one from 7860.")
    add_model_options(parser)
    args = parser.parse_args(argv)
    return program.exit_code(lambda: search(args), parser.option_names())


def search(args: argparse.Namespace) -> None:
    """Read and embed the sentences, and serve the page until a signal."""
    require_gradio()
    sentences = load_labeled_sentences(args.train_file, args.text_column)
    names = [name for name in (args.model, args.other) if name]
    encoders = [load_model(name, **model_options(args)) for name in names]
    found = load_search(encoders, sentences, args.embeddings)
    print(f"{counted(len(found), 'sentence')} from {args.train_file}")
    url = serve(build_page(found), args.host, args.port, args.allowed_hosts)
    print(f"The search page is at {url} (Ctrl-C stops it)", flush=True)
    wait()
