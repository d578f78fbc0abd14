"""Options that several commands share: texts, outputs, and how a model is loaded and embeds."""

import argparse
from os.path import expanduser
from typing import Any

MODEL_OPTIONS = ("pooler", "prompt", "max_seq_length", "batch_size", "device", "bf16", "revision", "trust_remote_code")


def add_text_options(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Add the options that name the texts."""
    add = parser.add_argument
    add(
        "--train_file",
        nargs="+",
        type=expanduser,
        required=required,
        metavar="FILE",
        help="Files of texts, or folders of files: .txt (one text per line), .csv, .tsv, .jsonl (plain or .gz), "
        ".parquet or .arrow. Blank texts are skipped, as are hidden files and unsupported suffixes in folders.",
    )
    add(
        "--text_column",
        metavar="NAME[,NAME...]",
        help="Column of the texts, or several to join, such as subject,body. Default: `text`, or the only column.",
    )


def add_output_dir(parser: argparse.ArgumentParser, kind: str) -> None:
    """Add the options that name the output folder; `kind` says what it may replace, such as "an output of fit"."""
    parser.add_argument("--output_dir", required=True, type=expanduser, metavar="FOLDER", help="Folder to write.")
    add_overwrite(parser, kind)


def add_overwrite(parser: argparse.ArgumentParser, kind: str) -> None:
    """Add the option to replace an output."""
    parser.add_argument("--overwrite_output_dir", action="store_true", help=f"Replace {kind} that is already there.")


def add_pooler(parser: argparse.ArgumentParser) -> None:
    """Add the option for one pooling."""
    parser.add_argument("--pooler", default="auto", help="Pooling: cls, mean, last, ... Default: the model's own.")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `informin.load_model` and of embedding, without the pooling."""
    add = parser.add_argument
    add(
        "--prompt",
        metavar="TEXT",
        help="Prompt prepended to each text; '' for none. Default: the model's default prompt.",
    )
    add(
        "--max_seq_length",
        type=int,
        metavar="N",
        help="Truncate texts to this many tokens. Default: the model's maximum.",
    )
    add("--batch_size", type=int, default=64, metavar="N", help="Texts per forward pass. Default: %(default)s.")
    add("--device", metavar="NAME", help="cpu, cuda, cuda:1, mps. Default: a GPU if there is one.")
    add("--bf16", action="store_true", help="Embed under bfloat16 autocast.")
    add("--revision", metavar="NAME", help="Branch, tag or commit of the model on the Hub.")
    add("--trust_remote_code", action="store_true", help="Run code from the model's repository, if it needs any.")


def model_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the model for `informin.fit` and the other functions."""
    return {name: getattr(args, name) for name in MODEL_OPTIONS}
