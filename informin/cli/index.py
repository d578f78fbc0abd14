"""Build an index of your texts for `informin search`, or replace one."""

import argparse

from informin import program
from informin.cli.options import add_model_options, add_text_options, model_options


def main(argv: list[str] | None = None) -> int:
    """Build the index. Returns the exit code: 0, 1 (failure), 2 (usage), 130 (interrupted)."""
    parser = program.Parser(prog="informin index", description=__doc__)
    add = parser.add_argument
    add("--model_name", required=True, metavar="MODEL", help="Hub id or local folder, such as an output of fit.")
    add_text_options(parser)
    add("--output_dir", required=True, metavar="FOLDER", help="Folder of the index.")
    add("--language", default="english",
        help="Language of the texts, for stop words and stems: german, french, ...; `other` for neither. "
        "Default: %(default)s.")  # fmt: skip
    add("--word_weight", type=float, default=0.25, metavar="W",
        help="Weight of the words beside the vectors. Default: %(default)s.")  # fmt: skip
    add("--smooth", action="store_true", help="Average each document vector with its nearest neighbors.")
    add("--queries", choices=["model", "table"], default="model",
        help="What embeds queries. table: token vectors fitted to the texts, so that search starts without the model "
        "and torch. Default: %(default)s.")  # fmt: skip
    add("--query_prompt", metavar="TEXT", help="Text before every query. Default: the model's prompt for queries.")
    add("--pooler", default="auto", help="Pooling: cls, mean, last, ... Default: auto, as the model specifies.")
    add_model_options(parser)
    args = parser.parse_args(argv)
    return program.exit_code(lambda: work(args), parser.option_names())


def work(args: argparse.Namespace) -> None:
    """Read the texts, build the index, save it, and print its size."""
    from informin.errors import counted
    from informin.outputs import only_writer
    from informin.search.index import Index
    from informin.texts import read_texts

    with only_writer(args.output_dir, "output_dir"):
        texts = list(read_texts(args.train_file, args.text_column))
        loading = model_options(args)
        how = {name: loading.pop(name) for name in ("prompt", "batch_size")}
        how |= {name: getattr(args, name) for name in ("language", "word_weight", "smooth", "query_prompt", "queries")}
        index = Index.build(args.model_name, texts, loading=loading, **how)
        index.save(args.output_dir)
    print(f"{args.output_dir}: {counted(len(index), 'text')}")
    if index.threshold is not None:
        print(f"Above a cosine of {index.threshold:.3f}, expect at most about one unrelated text per query.")
    print(f'Search it: informin search --index {args.output_dir} "your words"')
