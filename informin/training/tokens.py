"""Tokenize the training sentences, choose their maximum length, and share a stream among processes."""

import logging
import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import datasets
import numpy as np
import pyarrow.compute as pc
from accelerate.data_loader import prepare_data_loader
from datasets.fingerprint import Hasher
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase, Trainer

from informin.errors import UsageError
from informin.training.sentences import Sentences, as_data, draw_sample

logger = logging.getLogger(__name__)

TRUNCATED = "truncated"  # column that marks truncated sentences
SAMPLED_SENTENCES = 10_000  # number of sentences to measure, drawn at random
STREAM_SAMPLE = 1_000  # number of sentences to measure, the first of a stream
QUANTILE = 0.95  # fraction of the sentences that fit
LENGTH_STEP = 8  # lengths are multiples of it
LEAST_LENGTH = 32  # the papers' length


def training_rows(
    data: Any,
    tokenizer: PreTrainedTokenizerBase,
    args: Any,
    prompt: str,
    longest: int,
    vocabulary: int | None,
    length: int | None,
    text_column: str | None = None,
) -> tuple[Any, Sentences | None, int]:
    """Return tokenized rows, the sentences, and the maximum number of tokens in a row.

    The rows have `input_ids` and `attention_mask`. The sentences are None for rows without text.

    Args:
        data: See `as_data`. Tokenized rows are returned unchanged.
        tokenizer: Tokenizer of the encoder.
        args: Arguments of the run.
        prompt: Prompt prepended to each sentence.
        longest: Maximum number of tokens that the encoder accepts.
        vocabulary: Number of tokens that the model has embeddings for; None if unknown.
        length: Maximum number of tokens in a row; None for a length that fits the sentences.
        text_column: See `as_data`.
    """
    rows, sentences = as_data(data, text_column)
    if sentences is None:
        if isinstance(rows, datasets.IterableDataset):
            rows = stream_share(rows, args)
        else:
            check_rows(rows, longest, vocabulary)
        return rows, None, length or min(longest, LEAST_LENGTH)
    is_stream = isinstance(sentences, datasets.IterableDataset)
    if is_stream and args.max_train_samples is not None and args.dataloader_num_workers > 1:
        # Each worker reads an equal part of the sample, of which it may not have enough.
        needed = "`dataloader_num_workers` 0 or 1 for a stream"
        raise UsageError(f"is {args.max_train_samples}", option="max_train_samples", needed=needed)
    sentences = draw_sample(sentences, args.max_train_samples, args.seed)
    counts = partial(token_counts, sentences, tokenizer, prompt)
    if length is None:
        length = fitting_length(counts(), longest)
    if not 3 <= length <= longest:
        raise UsageError(f"is {length}", option="max_seq_length", needed=f"3 to {longest} tokens for this encoder")
    if len(tokenizer(prompt)["input_ids"]) >= length:
        raise UsageError("leaves no room for a sentence in `max_seq_length`", option="prompt")
    if is_stream:
        rows = tokenize(stream_share(sentences, args), tokenizer, length, prompt).remove_columns(TRUNCATED)
        measured = counts()
        truncated = int((measured > length).sum())
        total = len(measured)
        what = "first sentences of the stream"
    else:
        rows = tokenize(sentences, tokenizer, length, prompt)
        truncated = pc.sum(rows.with_format("arrow")[TRUNCATED]).as_py()
        total = len(rows)
        what = "training sentences"
        rows = rows.remove_columns(TRUNCATED)
    if args.process_index == 0 and truncated > (1 - QUANTILE) * total:
        logger.warning(
            f"{truncated:,} of {total:,} {what} ({truncated / total:.1%}) are truncated at `max_seq_length` {length}. "
            + _advice(counts, length, longest)
        )
    return rows, sentences, length


def check_rows(rows: Any, longest: int, vocabulary: int | None) -> None:
    """Raise UsageError for tokenized rows without a mask, with too many tokens, or with tokens the encoder lacks.

    A transform may change rows when they are read, so its rows are not checked.
    """
    if isinstance(rows, datasets.Dataset) and rows.format["type"] == "custom":
        return
    columns = rows.column_names if isinstance(rows, datasets.Dataset) else rows[0]
    if "attention_mask" not in columns:
        raise UsageError("has input_ids and no attention_mask", option="train_dataset", needed="both columns, or text")
    if isinstance(rows, datasets.Dataset):
        column = rows.with_format("arrow")["input_ids"]
        most = pc.max(pc.list_value_length(column)).as_py() or 0
        highest = pc.max(pc.list_flatten(column)).as_py() or 0
    else:
        most = max(len(row["input_ids"]) for row in rows)
        highest = max(max(row["input_ids"]) for row in rows)
    if most > longest:
        needed = f"at most {longest} tokens for this encoder"
        raise UsageError(f"has a row of {most} tokens", option="train_dataset", needed=needed)
    if vocabulary is not None and highest >= vocabulary:
        raise UsageError(
            f"has token id {highest:,}, and the model has embeddings for {vocabulary:,} tokens",
            option="train_dataset",
            fix="Tokenize the sentences with the tokenizer of the model.",
        )


def tokenize(sentences: Any, tokenizer: PreTrainedTokenizerBase, max_seq_length: int, prompt: str = "") -> Any:
    """Return `input_ids`, `attention_mask` and `truncated` of every sentence with the prompt; cached on disk."""
    # Not a nested function: workers of a data loader must be able to pickle it.
    tokens = partial(_tokens, tokenizer=tokenizer, max_length=max_seq_length, prompt=prompt)
    if isinstance(sentences, datasets.IterableDataset):
        return sentences.map(tokens, batched=True, remove_columns=["text"])
    # The hash of a fast tokenizer changes when it is first called, and the cache would be missed.
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    parts = [sentences._fingerprint, backend.to_str(), tokenizer.padding_side, max_seq_length, prompt, TRUNCATED]
    return sentences.map(tokens, batched=True, remove_columns=["text"], new_fingerprint=Hasher.hash(parts))


def _tokens(batch: dict, tokenizer: PreTrainedTokenizerBase, max_length: int, prompt: str) -> dict:
    texts = [prompt + text for text in batch["text"]]
    tokens = tokenizer(texts, truncation=True, max_length=max_length, return_token_type_ids=False)
    return {**tokens, TRUNCATED: [bool(encoding.overflowing) for encoding in tokens.encodings]}


def token_counts(sentences: Sentences, tokenizer: PreTrainedTokenizerBase, prompt: str) -> np.ndarray:
    """Return the number of tokens (n,) of a sample of the sentences, including the prompt and special tokens.

    The sample does not depend on the process or the run's seed, so a resumed run gets the same counts.
    """
    if isinstance(sentences, datasets.IterableDataset):
        texts = [row["text"] for row in sentences.take(STREAM_SAMPLE)]
        if not texts:
            raise UsageError("has no sentence that is not blank", option="train_dataset")
    elif len(sentences) > SAMPLED_SENTENCES:
        drawn = np.random.default_rng(0).choice(len(sentences), SAMPLED_SENTENCES, replace=False)
        texts = sentences.select(np.sort(drawn))["text"]
    else:
        texts = sentences["text"]
    tokens = tokenizer([prompt + text for text in texts], return_attention_mask=False, verbose=False)["input_ids"]
    return np.array([len(ids) for ids in tokens])


def fitting_length(counts: np.ndarray, longest: int) -> int:
    """Return the `QUANTILE` of the token counts, rounded up to a multiple of `LENGTH_STEP`.

    It is at least `LEAST_LENGTH` and at most `longest`.

    Args:
        counts: From `token_counts`; may be empty.
        longest: Maximum number of tokens that the encoder accepts.
    """
    quantile = np.quantile(counts, QUANTILE, method="inverted_cdf") if len(counts) else LEAST_LENGTH
    return min(longest, max(LEAST_LENGTH, LENGTH_STEP * math.ceil(quantile / LENGTH_STEP)))


def _advice(counts: Callable[[], np.ndarray], length: int, longest: int) -> str:
    measured = counts()
    fitting = fitting_length(measured, longest)
    if length >= fitting:
        return f"The encoder accepts at most {longest} tokens, so longer sentences must be split."
    return f"`max_seq_length` {fitting} would fit {np.mean(measured <= fitting):.0%} of them."


def stream_share(stream: datasets.IterableDataset, args: Any) -> datasets.IterableDataset:
    """Return the rows of this process. Of every W consecutive batches, each of the W processes takes one, by rank.

    All processes read the whole stream. If they read different shards, some would get more batches than others, and
    the run would end early. With `dataloader_drop_last`, rows that do not fill W batches are dropped.
    """
    size = args.train_batch_size
    share = slice(args.process_index * size, (args.process_index + 1) * size)
    shared = stream.map(
        partial(_cut, share=share),  # not a nested function: workers of a data loader must be able to pickle it
        batched=True,
        batch_size=size * args.world_size,
        drop_last_batch=args.dataloader_drop_last,
    )
    return shared if stream.features is None else shared.cast(stream.features)  # map drops the features


def _cut(batch: dict[str, list], share: slice) -> dict[str, list]:
    return {name: column[share] for name, column in batch.items()}


def stream_loader(trainer: Trainer) -> DataLoader:
    """Return a data loader for the rows of this process; Trainer's own loader would split them again."""
    args = trainer.args
    rows = cast(datasets.IterableDataset, trainer.train_dataset)
    loader: DataLoader = DataLoader(
        rows,
        batch_size=args.train_batch_size,
        collate_fn=trainer._get_collator_with_removed_columns(trainer.data_collator),
        num_workers=args.dataloader_num_workers,
        pin_memory=args.dataloader_pin_memory,
        persistent_workers=args.dataloader_persistent_workers,
        multiprocessing_context=args.dataloader_multiprocessing_context,
        prefetch_factor=args.dataloader_prefetch_factor,
        in_order=args.dataloader_in_order,
        worker_init_fn=_tokenize_alone if args.dataloader_num_workers else None,
    )
    return prepare_data_loader(loader, args.device, num_processes=1, process_index=0, dispatch_batches=False)


def _tokenize_alone(worker: int) -> None:
    """Tokenize with one thread in a worker: the threads of a forked process do not exist, and it would wait forever."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
