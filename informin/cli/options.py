"""Options that several commands share: texts, and how a model is loaded and embeds."""

import argparse
from typing import Any

MODEL = ("pooler", "prompt", "max_length", "batch_size", "device", "bf16", "revision", "trust_remote_code")


def add_text_options(parser: argparse.ArgumentParser, required: bool = True) -> None:
    add = parser.add_argument
    add("--train_file", nargs="+", required=required, metavar="FILE",
        help="Files of texts, or folders of files: .txt (one text per line), .csv, .tsv, .jsonl (plain or .gz), "
        ".parquet or .arrow. Blank texts and hidden files in folders are skipped.")  # fmt: skip
    add("--text_column", metavar="NAME[,NAME...]",
        help="Column of the texts, or several to join, such as subject,body. Default: `text`, or the only "
        "column.")  # fmt: skip


def add_model_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--prompt", metavar="TEXT", help="Text before every text; '' for none. Default: the model's default prompt.")
    add("--max_length", type=int, metavar="N", help="Truncate texts to this many tokens. Default: the model's maximum.")
    add("--batch_size", type=int, default=64, metavar="N", help="Texts per forward pass. Default: %(default)s.")
    add("--device", metavar="NAME", help="cpu, cuda, cuda:1, mps. Default: a GPU if there is one.")
    add("--bf16", action="store_true", help="Embed under bfloat16 autocast.")
    add("--revision", metavar="NAME", help="Branch, tag or commit of the model on the Hub.")
    add("--trust_remote_code", action="store_true", help="Run code from the model's repository, if it needs any.")


def model_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the model for a function in `informin.jobs`."""
    return {name: getattr(args, name) for name in MODEL if name in args}
