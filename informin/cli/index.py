"""Build an index of your texts for `informin search`."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from os.path import expanduser
from shlex import quote
from typing import TYPE_CHECKING, Any

from informin import program
from informin.cli.options import add_model_options, add_output_dir, add_pooler, add_text_options, model_options

if TYPE_CHECKING:
    from informin.frozen.index import Index

OPTION_OF = {"ids": "id_column", "fields": "keep", "texts": "train_file"}  # by the argument of `Index.build`
BUILD_OPTIONS = ("language", "word_weight", "smooth", "query_prompt", "queries", "rerank")


def main(argv: list[str] | None = None) -> int:
    """Build the index. Returns the exit code: 0, 1 (failure), 2 (usage), 130 (interrupted)."""
    parser = program.Parser(prog="informin index", description=__doc__)
    add = parser.add_argument
    add(
        "--model_name",
        required=True,
        type=expanduser,
        metavar="MODEL",
        help="Hub id or local folder, such as an output of fit.",
    )
    add_text_options(parser)
    add("--id_column", metavar="NAME", help="Column of your ids of the texts, which hits show.")
    add("--keep", metavar="NAME[,NAME...]", help="More columns to show with each hit, such as title,url.")
    add_output_dir(parser, "an index")
    add(
        "--language",
        default="english",
        help="Language of the texts, for stop words and stems: german or de, french or fr, ...; `other` for neither. "
        "Default: %(default)s.",
    )
    add(
        "--word_weight",
        type=float,
        default=0.25,
        metavar="W",
        help="Weight of BM25 relative to the vectors. Default: %(default)s.",
    )
    add("--smooth", action="store_true", help="Average each document vector with its nearest neighbors.")
    add(
        "--queries",
        type=lambda name: {"table": "static"}.get(name, name),  # an older name
        choices=["model", "static"],
        default="model",
        help="What embeds queries. static: token vectors fitted to the texts, so that search starts without the model "
        "and torch. Default: %(default)s.",
    )
    add(
        "--document_prompt",
        metavar="TEXT",
        help="Prompt prepended to every text. Default: --prompt, or the model's document prompt.",
    )
    add("--query_prompt", metavar="TEXT", help="Prompt prepended to every query. Default: the model's query prompt.")
    add(
        "--rerank",
        "--second_look",
        action="store_true",
        help="Keep the token vectors of the texts, to rerank the first 50 hits of a search by late interaction.",
    )
    add_pooler(parser)
    add_model_options(parser)
    args = parser.parse_args(argv)
    return program.exit_code(lambda: work(args), parser.option_names(), "Nothing was written.")


def work(args: argparse.Namespace) -> None:
    """Read the texts, build the index, save it, and print its size."""
    from informin.hub import raise_if_not_found

    raise_if_not_found(args.model_name, args.revision)
    from informin.errors import counted
    from informin.files import only_writer
    from informin.frozen.index import Index
    from informin.frozen.index_files import raise_if_not_index

    with only_writer(args.output_dir, "output_dir"):
        raise_if_not_index(args.output_dir, args.overwrite_output_dir)
        loading = model_options(args)
        prompt = loading.pop("prompt")
        options = {name: getattr(args, name) for name in BUILD_OPTIONS} | loading
        options["document_prompt"] = prompt if args.document_prompt is None else args.document_prompt
        with named_as_options():
            index = Index.build(args.model_name, **options, **read(args))
        index.save(args.output_dir)
    print(f"{args.output_dir}: {counted(len(index), 'text')}, {index.vectors.shape[1]} dimensions")
    if index.threshold is not None:
        print(f"Above a cosine of {index.threshold:.3f}, expect at most about one unrelated text per query.")
    if not args.rerank:
        print(reranking_cost(index))
    code = " --trust_remote_code" if args.trust_remote_code else ""
    print(f'Search it: informin search --index {quote(args.output_dir)}{code} "your words"')


@contextmanager
def named_as_options() -> Iterator[None]:
    """Raise errors about the arguments of `Index.build` with the names of the command's options."""
    from informin.errors import UsageError

    try:
        yield
    except UsageError as error:
        option = OPTION_OF.get(error.option or "", error.option)
        raise UsageError(error.found, option=option, needed=error.needed, fix=error.fix) from None


def reranking_cost(index: "Index") -> str:
    """Return a sentence with the bytes that reranking would add."""
    from informin.frozen.index_model import token_vector_bytes

    size = token_vector_bytes(index.model, index.texts)
    if size is None:
        return "The model has no token vectors to rerank hits."
    megabytes = f"{size / 1e6:,.1f}" if size >= 1e5 else "less than 0.1"
    return f"Reranking the first 50 hits (--rerank) would add {megabytes} MB to the index."


def read(args: argparse.Namespace) -> dict[str, Any]:
    """Return the texts, blank ones included, and their ids and fields if there are columns of them."""
    from informin.texts import read_documents, read_texts

    kept = [name.strip() for name in args.keep.split(",")] if args.keep else []
    columns = {name: "keep" for name in kept}
    if args.id_column:
        columns[args.id_column] = "id_column"
    if not columns:
        return {"texts": list(read_texts(args.train_file, args.text_column, keep_blank=True))}
    found = list(read_documents(args.train_file, args.text_column, columns))
    return {
        "texts": [text for text, _ in found],
        "ids": [values.get(args.id_column) for _, values in found],
        "fields": [{name: values[name] for name in kept} for _, values in found],
    }
