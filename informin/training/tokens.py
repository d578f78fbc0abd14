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
SAMPLE, STREAM_SAMPLE = 10_000, 1_000  # number of sentences to measure: a random sample, or the first of a stream
QUANTILE = 0.95  # fraction of the sentences that fit
STEP, LEAST = 8, 32  # lengths are multiples of STEP; LEAST is the papers' length


def training_rows(
    data: Any, tokenizer: PreTrainedTokenizerBase, args: Any, longest: int, text_column: str | None = None
) -> tuple[Any, Sentences | None]:
    """Return tokenized rows with `input_ids` and `attention_mask`, and the sentences, None for rows without text.

    Args:
        data: See `as_data`. Tokenized rows are returned unchanged.
        tokenizer: Tokenizer of the encoder.
        args: Arguments of the run. If `max_seq_length` is None, it is set to a length that fits the sentences.
        longest: Maximum number of tokens that the encoder accepts.
        text_column: See `as_data`.
    """
    rows, sentences = as_data(data, text_column)
    if sentences is None:
        args.max_seq_length = args.max_seq_length or min(longest, LEAST)
        return (stream_share(rows, args) if isinstance(rows, datasets.IterableDataset) else rows), None
    is_stream = isinstance(sentences, datasets.IterableDataset)
    if is_stream and args.max_train_samples is not None and args.dataloader_num_workers > 1:
        # Each worker reads an equal part of the sample, of which it may not have enough.
        needed = "`dataloader_num_workers` 0 or 1 for a stream"
        raise UsageError(f"is {args.max_train_samples}", option="max_train_samples", needed=needed)
    sentences, prompt = draw_sample(sentences, args.max_train_samples, args.seed), args.prompt or ""
    counts = partial(token_counts, sentences, tokenizer, prompt)
    if args.max_seq_length is None:
        args.max_seq_length = fitting_length(counts(), longest)
    length = args.max_seq_length
    if not 3 <= length <= longest:
        raise UsageError(f"is {length}", option="max_seq_length", needed=f"3 to {longest} tokens for this encoder")
    if len(tokenizer(prompt)["input_ids"]) >= length:
        raise UsageError("leaves no room for a sentence in `max_seq_length`", option="prompt")
    if is_stream:
        rows = tokenize(stream_share(sentences, args), tokenizer, length, prompt).remove_columns(TRUNCATED)
        truncated, total, what = int((counts() > length).sum()), len(counts()), "first sentences of the stream"
    else:
        rows = tokenize(sentences, tokenizer, length, prompt)
        truncated, total = pc.sum(rows.with_format("arrow")[TRUNCATED]).as_py(), len(rows)
        rows, what = rows.remove_columns(TRUNCATED), "training sentences"
    if args.process_index == 0 and truncated > (1 - QUANTILE) * total:
        logger.warning(
            f"{truncated:,} of {total:,} {what} ({truncated / total:.1%}) are truncated at `max_seq_length` {length}. "
            + _advice(counts, length, longest)
        )
    return rows, sentences


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
    elif len(sentences) > SAMPLE:
        drawn = np.random.default_rng(0).choice(len(sentences), SAMPLE, replace=False)
        texts = sentences.select(np.sort(drawn))["text"]
    else:
        texts = sentences["text"]
    tokens = tokenizer([prompt + text for text in texts], return_attention_mask=False, verbose=False)["input_ids"]
    return np.array([len(ids) for ids in tokens])


def fitting_length(counts: np.ndarray, longest: int) -> int:
    """Return the `QUANTILE` of the token counts, rounded up to a multiple of `STEP`, between `LEAST` and `longest`.

    Args:
        counts: From `token_counts`; may be empty.
        longest: Maximum number of tokens that the encoder accepts.
    """
    quantile = np.quantile(counts, QUANTILE, method="inverted_cdf") if len(counts) else LEAST
    return min(longest, max(LEAST, STEP * math.ceil(quantile / STEP)))


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
    size, drop = args.train_batch_size, args.dataloader_drop_last
    share = slice(args.process_index * size, (args.process_index + 1) * size)
    # Not a nested function: workers of a data loader must be able to pickle it.
    shared = stream.map(
        partial(_cut, share=share), batched=True, batch_size=size * args.world_size, drop_last_batch=drop
    )
    return shared if stream.features is None else shared.cast(stream.features)  # map drops the features


def _cut(batch: dict[str, list], share: slice) -> dict[str, list]:
    return {name: column[share] for name, column in batch.items()}


def stream_loader(trainer: Trainer) -> DataLoader:
    """Return a data loader for the rows of this process; Trainer's own loader would split them again."""
    args, rows = trainer.args, cast(datasets.IterableDataset, trainer.train_dataset)
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
    single_process = dict(num_processes=1, process_index=0, dispatch_batches=False)
    return prepare_data_loader(loader, args.device, put_on_device=True, **single_process)


def _tokenize_alone(worker: int) -> None:
    """Tokenize with one thread in a worker: the threads of a forked process do not exist, and it would wait forever."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
