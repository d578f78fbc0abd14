"""Load and tokenize training sentences from files or the Hub, and load the evaluation data."""

import inspect
import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import pyarrow.compute as pc
from datasets.exceptions import DatasetGenerationError
from datasets.fingerprint import Hasher
from huggingface_hub import dataset_info
from transformers import PreTrainedTokenizerBase

from informin import arrowfiles, jsonfiles, quoting, textfiles, textlines
from informin.errors import UsageError, counted, error_line
from informin.evaluation import load_pairs, load_stsb_dev
from informin.evaluation.collections import load_retrieval_pairs
from informin.evaluation.development import Development, DevelopmentSet
from informin.evaluation.drift import stsb_dev
from informin.evaluation.labels import load_labels
from informin.evaluation.senteval_files import HUB_ERRORS, hub_file, senteval_folder
from informin.inputfiles import find_files
from informin.models.embedding_config import refuse_long_prompt
from informin.models.tokenizer import forget_truncation
from informin.models.weights import tokenizer_settings
from informin.textfiles import (
    as_text,
    choose_column,
    is_blank,
    joined_cells,
    refuse_unread_column,
    shown,
    split_columns,
    table_column,
)
from informin.training.data_options import DataArguments
from informin.training.fingerprints import fingerprints, with_source
from informin.training.options import InforMinTrainingArguments
from informin.training.streams import TEXT, shard_rows, stream_files

logger = logging.getLogger(__name__)

MANY, BYTES_PER_SENTENCE = 100_000, 50  # larger data sets are loaded and tokenized with a progress bar
BUFFER = 10_000  # size of the buffer in which a stream is shuffled
TRUNCATED = "truncated"  # column that marks truncated sentences
READERS = (arrowfiles, jsonfiles, quoting, textfiles, textlines)  # modules that determine what is read from a file
HUB_SENTENCES = "wiki1m_for_simcse.txt"


def load_sentences(args: DataArguments, seed: int) -> datasets.Dataset | datasets.IterableDataset:
    """Return the training sentences as a data set with the column `text`, without blank ones.

    Args:
        args: Where to load them from.
        seed: Seed for shuffling a stream.

    Raises:
        UsageError: A file, column or data set does not exist or cannot be read, or all sentences are equal.
    """
    files: list[Path] = []
    if args.dataset_name:
        dataset, source = _load_hub_dataset(args), args.dataset_name
    else:
        files = find_files(args.train_file) if args.train_file else [hub_file(HUB_SENTENCES, "`train_file` FILE")]
        refuse_unread_column(files, args.text_column)
        if next(shard_rows([(file, 0, 1) for file in files], *columns_of(args)), None) is None:
            raise UsageError(f"No sentences in {', '.join(map(str, files))}", needed="at least one sentence")
    if args.streaming:
        sentences = stream_files(files, *columns_of(args)) if files else dataset
        sentences = sentences.filter(has_text).shuffle(seed=seed, buffer_size=BUFFER)
        return with_source(sentences.cast(TEXT), _source(args, files))  # filter drops the features
    columns: list[str] = []
    if files:
        source = ", ".join(map(str, files)) if len(files) < 4 else f"{len(files)} files"
        found = {table_column(file, args.text_column) for file in files}
        columns = sorted(column for column in found if column not in (None, "text"))
        source += f", column {', '.join(map(repr, columns))}" if columns else ""
        dataset = _load_files(files, *columns_of(args))
    kept = not_blank(dataset)
    blank = counted(len(dataset) - len(kept), "blank line")
    if len(kept) == 0:
        raise UsageError(f"No sentences in {source}, only {blank}", needed="at least one sentence")
    sentences = dataset.select(kept)
    refuse_copies(sentences, source)
    # Report blank lines, and a column that the user did not choose.
    level = logging.INFO if columns or len(kept) < len(dataset) else logging.DEBUG
    logger.log(level, f"{counted(len(kept), 'sentence')} from {source} ({blank} skipped)")
    return sentences


def refuse_copies(sentences: datasets.Dataset, source: str) -> None:
    """Raise UsageError if all sentences are equal."""
    first = sentences[0]["text"].strip()
    if len(sentences) > 1 and all(sentence.strip() == first for sentence in sentences["text"]):
        raise UsageError(
            f"All {len(sentences):,} sentences of {source} are '{shown([first])}'",
            needed="different sentences",
            fix="Check the training data and `text_column`.",
        )


def draw_sample(sentences: datasets.Dataset | datasets.IterableDataset, number: int | None, seed: int):
    """Return a random sample in the order of the data, or the first sentences of a stream, which is shuffled.

    Args:
        sentences: Column `text`.
        number: Number of sentences; None for all.
        seed: Seed of the sample.
    """
    if number is None:
        return sentences
    if isinstance(sentences, datasets.IterableDataset):
        return sentences.take(number)
    if number >= len(sentences):
        return sentences
    sample = sentences.select(np.sort(np.random.default_rng(seed).choice(len(sentences), number, replace=False)))
    refuse_copies(sample, "the sample")
    return sample


def _source(args: DataArguments, files: list[Path]) -> dict:
    """Return fingerprints of the files that a stream reads, or the commit of a data set on the Hub."""
    source: dict[str, object] = {"text_column": args.text_column}
    source |= {"prompt_column": args.prompt_column} if args.prompt_column else {}
    if args.dataset_name and not os.path.exists(args.dataset_name):
        try:
            return source | {"commit": dataset_info(args.dataset_name).sha}
        except HUB_ERRORS:
            return source | {"commit": None}
    if args.dataset_name:
        files = sorted(path for path in Path(args.dataset_name).rglob("*") if path.is_file())
    return source | {"files of the stream": fingerprints(files)}


def not_blank(dataset: datasets.Dataset) -> np.ndarray:
    """Return the indices of the rows whose `text` is not blank."""
    batches = (batch["text"].to_pylist() for batch in dataset.with_format("arrow").iter(MANY))
    return np.flatnonzero([not is_blank(text) for batch in batches for text in batch])


def _with_columns(row: dict, columns: list[str]) -> dict[str, str]:
    """Return the joined texts of several columns, under the name of the first."""
    return {columns[0]: joined_cells(row[name] for name in columns)}


def _joined(row: dict, text: str, prompt: str) -> dict[str, str]:
    """Return the sentence of a row after its prompt; see `informin.textfiles.read_prompted`."""
    both = [as_text(row[name], "the data set", None) for name in (prompt, text)]
    return {text: "".join(both) if not is_blank(both[1]) else both[1]}


def has_text(row: dict) -> bool:
    """Return whether the `text` of a row is not blank."""
    return not is_blank(row["text"])


def tokenize(sentences, tokenizer: PreTrainedTokenizerBase, max_seq_length: int, prompt: str = ""):
    """Return `input_ids` and `attention_mask` of every sentence with the prompt, truncated; cached on disk.

    Raises:
        UsageError: See `tokenize_and_count`.
    """
    return tokenize_and_count(sentences, tokenizer, max_seq_length, prompt)[0]


def tokenize_and_count(sentences, tokenizer: PreTrainedTokenizerBase, max_seq_length: int, prompt: str = ""):
    """Return the result of `tokenize`, and the number of truncated sentences; None for a stream.

    Raises:
        UsageError: `max_seq_length` exceeds the encoder's maximum, or the prompt alone reaches `max_seq_length`.
    """
    if max_seq_length > tokenizer.model_max_length:
        raise UsageError(
            f"is {max_seq_length}",
            option="max_seq_length",
            needed=f"at most {tokenizer.model_max_length}, the maximum length of this encoder",
        )
    refuse_long_prompt(prompt, tokenizer, "max_seq_length", max_seq_length)
    # Not a nested function: workers of a data loader must be able to pickle it.
    tokens = partial(_tokens, tokenizer=tokenizer, max_length=max_seq_length, prompt=prompt)
    if isinstance(sentences, datasets.IterableDataset):
        return sentences.map(tokens, batched=True, remove_columns=["text"]).remove_columns(TRUNCATED), None
    _show_bars(len(sentences) > MANY)
    # The hash of a fast tokenizer changes when it is first called, and the cache would be missed.
    forget_truncation(tokenizer)
    fingerprint = Hasher.hash(
        [sentences._fingerprint, tokenizer_settings(tokenizer), max_seq_length, prompt, TRUNCATED]
    )
    with _writing_cache():
        rows = sentences.map(
            tokens, batched=True, remove_columns=["text"], new_fingerprint=fingerprint, desc="Tokenizing"
        )
    return rows.remove_columns(TRUNCATED), pc.sum(rows.with_format("arrow")[TRUNCATED]).as_py()


@contextmanager
def _writing_cache() -> Iterator[None]:
    """Raise UsageError if the cache of data sets cannot be written, for example in a read-only home directory."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"Data sets cannot be cached in {datasets.config.HF_DATASETS_CACHE}: {error_line(error)}",
            fix="Set HF_HOME to a writable folder.",
        ) from None


def _tokens(batch: dict, tokenizer: PreTrainedTokenizerBase, max_length: int, prompt: str):
    texts = [prompt + as_text(text, "a training sentence", None) for text in batch["text"]]
    tokens = tokenizer(texts, truncation=True, max_length=max_length, return_token_type_ids=False)
    return {**tokens, TRUNCATED: [bool(encoding.overflowing) for encoding in tokens.encodings]}


def refuse_few_sentences(train_dataset, args: InforMinTrainingArguments) -> None:
    """Raise UsageError if there are too few sentences for one batch or a term, or if the last batch is too small."""
    batch = args.per_device_train_batch_size * args.world_size
    steps = args.max_steps if args.max_steps > 0 else math.inf
    found = len(train_dataset) if hasattr(train_dataset, "__len__") else math.inf
    read = min(found, steps * batch * args.gradient_accumulation_steps)
    if args.dataloader_drop_last and found < batch:
        raise UsageError(
            f"Found {counted(int(found), 'sentence')}, fewer than one batch of {batch}",
            fix="Add sentences, or lower `per_device_train_batch_size`.",
        )
    last = 0 if args.dataloader_drop_last or found == math.inf else int(found) % batch
    for term in args.terms:
        if found == math.inf and not args.dataloader_drop_last and term.smallest_batch > 1:
            raise UsageError(
                f"is false, and the last batch of a stream may be too small for {term.title}",
                option="dataloader_drop_last",
                fix="Leave it on for a stream.",
            )
        if 0 < last < term.smallest_batch:
            raise UsageError(
                f"The last batch has {counted(last, 'sentence')} ({found} sentences in batches of {batch}), which is "
                f"too small for {term.title}",
                needed=f"a batch of {term.smallest_batch} or more",
                fix="Leave `dataloader_drop_last` on, or change `per_device_train_batch_size`.",
            )
        term.require_sentences(read)


def load_development(args: DataArguments) -> Development:
    """Return the evaluation data: the user's scored pairs, labeled sentences and retrieval pairs.

    Without pairs, STS-B dev is added: from a folder, the environment or the Hub. Together with labeled sentences or
    retrieval pairs it is only added if it is available locally.

    Raises:
        UsageError: There is no evaluation data; the message lists the alternatives.
    """
    own: list[DevelopmentSet] = [load_pairs(args.eval_pairs)] if args.eval_pairs else []
    if args.eval_labels:
        own.append(load_labels(args.eval_labels, "eval_labels"))
    if args.eval_retrieval:
        own.append(load_retrieval_pairs(args.eval_retrieval))
    if own and not args.eval_pairs and not args.senteval_dir:
        try:
            own += [pairs] if (pairs := stsb_dev(None)) else []  # from $SENTEVAL_DATA
        except UsageError as error:
            logger.info(f"STS-B dev is not evaluated: {error}")
        return Development(tuple(own))
    if args.eval_pairs:
        return Development(tuple(own))
    instead = (
        "`senteval_dir` FOLDER (SentEval's data/downstream), set SENTEVAL_DATA to it, give `eval_pairs` FILE, or "
        "train without evaluation: `eval_strategy` no"
    )
    return Development((load_stsb_dev(senteval_folder(args.senteval_dir, instead)), *own))


def _show_bars(many: bool) -> None:
    if many and not datasets.config.HF_DATASETS_DISABLE_PROGRESS_BARS:
        datasets.enable_progress_bars()


def columns_of(args: DataArguments) -> tuple[str | None, str | None]:
    """Return the columns of the sentences and of their prompts."""
    return args.text_column, args.prompt_column


def _load_files(files: list[Path], text_column: str | None, prompt_column: str | None) -> datasets.Dataset:
    # Size, modification time and our reader are part of the cache key, so that changes cause a reload.
    reader = Hasher.hash([inspect.getsource(module) for module in READERS])
    _show_bars(sum(file.stat().st_size for file in files) > BYTES_PER_SENTENCE * MANY)
    keys = [(str(file.resolve()), 0, 1, file.stat().st_size, file.stat().st_mtime_ns, reader) for file in files]
    named = {"shards": keys, "text_column": text_column, "prompt_column": prompt_column}
    try:
        with _writing_cache():
            return datasets.Dataset.from_generator(shard_rows, features=TEXT, gen_kwargs=named, split="train")
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, UsageError):
            raise error.__cause__ from None
        raise


def _load_hub_dataset(args: DataArguments):
    try:
        dataset = datasets.load_dataset(
            args.dataset_name, args.dataset_config, split=args.dataset_split, streaming=args.streaming
        )
        first = next(iter(dataset), None)
    except (*HUB_ERRORS, ValueError, DatasetGenerationError) as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise UsageError(f"{args.dataset_name} cannot be loaded: {error_line(cause)}", option="dataset_name") from None
    if first is None:
        raise UsageError(f"is {args.dataset_name}, whose split {args.dataset_split!r} is empty", option="dataset_name")
    columns = list(first)
    chosen = [choose_column(columns, name, args.dataset_name) for name in split_columns(args.text_column)]
    for column in chosen:
        if dataset.features is None:  # a stream without declared types
            as_text(first[column], args.dataset_name, None)
        elif dataset.features[column] not in (datasets.Value("string"), datasets.Value("large_string")):
            raise UsageError(
                f"Column {column!r} of {args.dataset_name} has the value {first[column]!r}",
                needed="text",
                fix="Choose another column with `text_column`.",
            )
    column = chosen[0]
    if len(chosen) > 1:
        dataset = dataset.map(partial(_with_columns, columns=chosen))
    if args.prompt_column:
        choose_column(columns, args.prompt_column, args.dataset_name)
        joined = partial(_joined, text=column, prompt=args.prompt_column)
        dataset = dataset.map(joined)
    dataset = dataset.remove_columns([name for name in columns if name != column])
    return dataset if column == "text" else dataset.rename_column(column, "text")
