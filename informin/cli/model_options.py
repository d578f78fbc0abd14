"""Options that several subcommands share: texts, and how a model is loaded and embeds."""

import argparse
from dataclasses import fields
from typing import cast

from informin.jobs.models import ModelKeywords, ModelOptions
from informin.models.open_model import BACKENDS
from modeling_informin import POOLINGS


def add_text_options(parser: argparse.ArgumentParser, required: bool) -> None:
    add = parser.add_argument
    add("--train_file", nargs="+", required=required, metavar="FILE",
        help="Files of texts, or folders of files: text (one per line), CSV, TSV, JSON, Parquet or Arrow; also "
        ".gz, .xz, .zst. Blank lines and hidden files in folders are skipped.")  # fmt: skip
    add("--text_column", metavar="NAME[,NAME...]",
        help="Column with the texts, or several to join, such as subject,body. Default: `text`, or the only "
        "column.")  # fmt: skip


def add_shared_lines(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strip_shared_lines", action="store_true",
        help="Remove lines at the beginning or end of texts that many of them share, such as greetings and "
        "signatures.")  # fmt: skip


def add_model_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--pooler", default="auto", choices=["auto", *POOLINGS],
        help="Pooling. auto: as the model specifies.")  # fmt: skip
    add("--prompt", metavar="TEXT", help="Text prepended to every text. Default: the model's default prompt.")
    add("--prompt_name", metavar="NAME",
        help="Instead of --prompt: a prompt that the model stores, such as query or document.")  # fmt: skip
    add("--max_length", type=int, help="Truncate texts to this many tokens. Default: the model's maximum.")
    add("--batch_size", type=int, default=64, help="Texts per forward pass.")
    add("--device", help="cpu, cuda, cuda:1, mps. Default: a GPU if there is one.")
    add("--bf16", action="store_true", help="Encode under bfloat16 autocast.")
    add_backend_options(parser)


def add_backend_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--backend", default="auto", choices=BACKENDS,
        help="native: BERT-like encoders. st: sentence-transformers runs the model's own modules (decoders, Dense "
        "layers, T5, static embeddings, remote code). auto: native if possible.")  # fmt: skip
    add("--trust_remote_code", action="store_true", help="Run code from the model's repository, if it needs any.")
    add("--code_revision", metavar="REVISION", help="Branch, tag or commit of that code on the Hub.")


def model_options(args: argparse.Namespace) -> ModelKeywords:
    """Return the options of the model for a function in `informin.jobs`."""
    return cast(ModelKeywords, {one.name: getattr(args, one.name) for one in fields(ModelOptions) if one.name in args})
