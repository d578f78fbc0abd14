"""Options that `informin embed` and `informin fit` share: texts and the encoder."""

import argparse
from typing import Any

import numpy as np
from tqdm import tqdm

from informin.bars import hidden
from informin.cli.source_rows import SourceRows
from informin.errors import UsageError
from informin.evaluation.together import encode_together
from informin.models.model import Model
from informin.models.open_model import BACKENDS, load_model
from informin.models.prompts import named_prompt, side_of, side_prompts
from informin.textfiles import is_blank, read_sentences
from informin.training.sentences import find_files
from modeling_informin import POOLINGS


def add_text_options(parser: argparse.ArgumentParser, required: bool) -> None:
    add = parser.add_argument
    add("--train_file", nargs="+", required=required, metavar="FILE",
        help="Files of texts, or folders of files: text (one per line), CSV, TSV, JSON, Parquet or Arrow; also "
        ".gz, .xz, .zst. Blank lines and hidden files in folders are skipped.")  # fmt: skip
    add("--text_column", help="Column with the texts. Default: `text`, or the only column.")


def add_encoder_options(parser: argparse.ArgumentParser) -> None:
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


def backend_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `add_backend_options` for `load_model`."""
    return {name: getattr(args, name) for name in ("backend", "trust_remote_code", "code_revision")}


def sides_of(encoder: Model, args: argparse.Namespace) -> tuple[Model, Model] | None:
    """Return the encoder for queries and for documents; None if it embeds both in the same way.

    A prompt for one side comes first, then `prompt`, then those that the checkpoint stores. A model with a Router also
    has a route for each side.
    """
    own = encoder.side_prompts if args.prompt is None else (args.prompt, args.prompt)
    given = (args.query_prompt, args.document_prompt)
    prompts = [stored if prompt is None else prompt for prompt, stored in zip(given, own)]
    if prompts == [encoder.prompt] * 2 and not encoder.routed:
        return None
    return encoder.for_side("query", prompts[0]), encoder.for_side("document", prompts[1])


def encoder_of(args: argparse.Namespace, model_name: str | None = None) -> Model:
    """Load a model with the options of `add_encoder_options`. Default: the model that the options name.

    In a model with a Router, texts are documents unless `prompt_name` is that of queries.
    """
    if args.prompt_name and args.prompt is not None:
        raise UsageError("cannot be combined with `prompt`", option="prompt_name", fix="Leave one of them out.")
    how = (model_name or args.model_name, (args.pooler,), args.max_length, args.batch_size, args.device, args.bf16)
    encoder = load_model(*how, prompt=args.prompt, **backend_of(args))
    if not args.prompt_name:
        return encoder.for_side("document", encoder.prompt) if encoder.routed else encoder
    side = side_of(args.prompt_name)
    if encoder.routed and side == args.prompt_name:  # it has both sides, with or without prompts
        return encoder.for_side(side, side_prompts(encoder.prompts, "")[side == "document"])
    return encoder.for_side(side, named_prompt(encoder.prompts, args.prompt_name))


def read_texts(args: argparse.Namespace) -> list[str]:
    """Return the texts of `read_with_rows`."""
    return read_with_rows(args)[0]


def read_with_rows(args: argparse.Namespace) -> tuple[list[str], SourceRows]:
    """Read the texts of all files, without blank rows. Return them, and the rows that they come from.

    Raises:
        UsageError: A file cannot be read, or there is no text.
    """
    files, texts, source = find_files(args.train_file), [], SourceRows()
    for file in files:
        kept: list[int] = []
        for row, text in enumerate(read_sentences(file, args.text_column)):
            if is_blank(text):
                source.blank += 1
            else:
                texts.append(text)
                kept.append(row)
        source.rows.append((file, kept))
    if not texts:
        raise UsageError(f"has no texts in {', '.join(map(str, files))}", option="train_file")
    return texts, source


def embed_in_memory(encoder: Model, texts: list[str]) -> np.ndarray:
    """Return the embeddings (N, d) of texts, with a progress bar. With several processes, each embeds a share."""
    (pooler,) = encoder.poolers
    with tqdm(total=len(texts), desc="embed", unit=" texts", leave=False, disable=hidden()) as bar:
        return encode_together(encoder, texts, bar.update)[pooler]
