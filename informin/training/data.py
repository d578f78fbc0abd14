"""The training sentences: where they come from, which column they are, their tokens, and the share of each process."""

import hashlib
import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias, cast

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from accelerate.data_loader import prepare_data_loader
from datasets.exceptions import DatasetGenerationError
from datasets.fingerprint import Hasher
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase, Trainer
from transformers.trainer_pt_utils import LengthGroupedSampler

import informin.texts
from informin.errors import UsageError, counted
from informin.evaluation.development import Development, DevelopmentSet
from informin.evaluation.drift import stsb_dev
from informin.evaluation.labels import load_labels
from informin.evaluation.pairs import load_pairs
from informin.evaluation.retrieval import load_retrieval_pairs
from informin.evaluation.senteval import hub_file, load_stsb_dev, senteval_folder
from informin.files import sha256
from informin.hub import HUB_SENTENCES, hub_is_reachable
from informin.texts import (
    TEXT_COLUMNS,
    as_texts,
    column_groups,
    find_files,
    is_blank,
    joined_cells,
    raise_if_table,
    read_columns,
    read_texts,
)
from informin.training.arguments import InforMinTrainingArguments
from informin.training.batch import names_to_read
from informin.training.inputs import DataArguments

logger = logging.getLogger(__name__)

Sentences: TypeAlias = datasets.Dataset | datasets.IterableDataset
Columns: TypeAlias = Sequence[str]  # of the texts of a sentence; see `View.columns`
ONE_TEXT = ("text",)
BUFFER = 10_000  # size of the buffer in which a stream is shuffled
NO_TEXT = "contains no text that is not blank"


# Files and datasets of `informin train`


def load_sentences(args: DataArguments, seed: int, columns: Columns = ()) -> Sentences:
    """Return the training sentences as a dataset with the column `text`, without blank ones.

    Args:
        args: Where to load them from.
        seed: Seed for shuffling a stream.
        columns: Columns of the dataset instead, if each sentence has several texts (`View.columns`).

    Raises:
        UsageError: A file or column does not exist or cannot be read.
    """
    columns = columns or ONE_TEXT
    if args.dataset_name:
        hub_is_reachable()  # if not, only the cache is searched, without retries
        from_hub = datasets.load_dataset(
            args.dataset_name, args.dataset_config, split=args.dataset_split, streaming=args.streaming
        )
        sentences = texts_only(from_hub, args.text_column, columns)
    else:
        files = find_files(args.train_file or [hub_file(HUB_SENTENCES, "`train_file` FILE")])
        check_number(args.text_column, columns)
        sentences = _read_files(files, args.text_column, columns, args.streaming)
    if not isinstance(sentences, datasets.IterableDataset):
        return with_texts(sentences)
    return sentences.filter(has_texts).shuffle(seed=seed, buffer_size=BUFFER).cast(features_of(columns))


def features_of(columns: Columns) -> datasets.Features:
    """Return the types of columns of texts, which filters of a stream drop."""
    return datasets.Features({name: datasets.Value("string") for name in columns})


def _read_files(files: list[Path], text_column: Sequence[str] | None, columns: Columns, streaming: bool) -> Sentences:
    """Return the sentences of files: as a stream, in which each file is a shard, or cached by `datasets`."""
    folder = datasets.config.HF_DATASETS_CACHE
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:  # as in a container without a home folder
        found = f"The sentences are cached in {folder}, which cannot be written ({error.strerror})"
        raise UsageError(found, fix="Set the environment variable HF_HOME to a folder that can be written.") from None
    names = list(map(str, files))
    options: dict[str, Any] = {"files": names, "columns": tuple(columns)}
    options["text_column"] = tuple(text_column) if text_column else None
    if streaming:
        if next(_rows(**options), None) is None:
            raise UsageError(NO_TEXT, option="train_file")
        return datasets.IterableDataset.from_generator(_rows, features=features_of(columns), gen_kwargs=options)
    # Size, modification time and the code that reads are part of the cache key, so that changes cause a reload. Tuples,
    # because each item of a list is a shard with its own call of the generator.
    stamps = tuple((file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    options |= {"files": tuple(names), "stamps": (*stamps, sha256(Path(informin.texts.__file__)))}
    try:
        features = features_of(columns)
        return datasets.Dataset.from_generator(_rows, features=features, gen_kwargs=options, split="train")
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, UsageError | OSError):
            raise error.__cause__ from None
        raise


def _rows(
    files: Sequence[str | Path], columns: Columns, text_column: Sequence[str] | None, stamps: tuple = ()
) -> Iterator[dict[str, str]]:
    """Yield the sentences of files as rows.

    `stamps` is part of the cache key: if it is given, the files are all files, and not a shard that may be empty.
    """
    texts: Iterable[tuple[str, ...]]
    if len(columns) == 1:
        texts = ((text,) for text in read_texts(files, text_column[0] if text_column else None))
    else:
        texts = read_columns(files, columns, text_column)
    is_empty = True
    for row in texts:
        is_empty = False
        yield dict(zip(columns, row))
    if is_empty and stamps:
        raise UsageError(NO_TEXT, option="train_file")


def load_development(args: DataArguments) -> Development:
    """Return the evaluation data: the user's scored pairs, labeled sentences and retrieval pairs.

    Without pairs, STS-B dev is added: from a folder, the environment or the Hub. Together with labeled sentences or
    retrieval pairs it is only added if it is available locally.

    Raises:
        UsageError: There is no evaluation data; the message lists the alternatives.
    """
    sets: list[DevelopmentSet] = [load_pairs(args.eval_pairs)] if args.eval_pairs else []
    sets += [load_labels(args.eval_labels, "eval_labels")] if args.eval_labels else []
    sets += [load_retrieval_pairs(args.eval_retrieval)] if args.eval_retrieval else []
    if not args.eval_pairs and sets:
        local = stsb_dev(args.senteval_dir)  # from $SENTEVAL_DATA by default
        sets += [local] if local else []
    elif not sets:
        instead = (
            "`senteval_dir` FOLDER (SentEval's data/downstream), set SENTEVAL_DATA to it, give `eval_pairs` FILE, or "
            "train without evaluation: `eval_strategy` no"
        )
        sets = [load_stsb_dev(senteval_folder(args.senteval_dir, instead))]
    return Development(tuple(sets))


# What the trainer is given


def as_data(
    data: Any, text_column: str | Sequence[str] | None = None, columns: Columns = ()
) -> tuple[Any, Sentences | None]:
    """Return the rows of a trainer's `train_dataset`, and the sentences among them; None for tokenized rows.

    Args:
        data: Sentences as a list or another iterable, such as a column, an array or a Series. Rows with a column of
            sentences: a dataset, a stream, a list of dictionaries. A `DatasetDict`, whose split train is used. Or
            tokenized rows with `input_ids`.
        text_column: Name of the column of sentences. Default: `text`, `sentence`, or the only column.
        columns: Columns of the texts if a sentence has several (`View.columns`). `text_column` then names as many
            columns, and an iterable may have tuples of texts.

    Raises:
        UsageError: `data` is something else, or contains something else.
    """
    columns = columns or ONE_TEXT
    text_column = [text_column] if isinstance(text_column, str) else text_column
    if isinstance(data, datasets.DatasetDict | datasets.IterableDatasetDict):
        if "train" not in data:
            found, fix = f"has the splits {', '.join(data)}", "Pass one of them."
            raise UsageError(found, option="train_dataset", needed="the split train", fix=fix)
        data = data["train"]
    if isinstance(data, Sentences):
        names = data.column_names or list(next(iter(data), {}))  # a stream may not know its columns
        if "input_ids" in names and text_column is None:
            return data, None
        sentences = texts_only(data, text_column, columns)
        if isinstance(sentences, datasets.IterableDataset):
            kept = sentences.filter(has_texts)  # which drops the features
            kept = kept if sentences.features is None else kept.cast(sentences.features)
            return kept, kept
        sentences = with_texts(sentences)
        return sentences, sentences
    if isinstance(data, torch.utils.data.IterableDataset):
        fix = "Use datasets.IterableDataset.from_generator, whose rows have the column `text`."
        raise UsageError("is an IterableDataset of PyTorch", option="train_dataset", fix=fix)
    if data is None or isinstance(data, str | bytes | PathLike | Real):
        found = "is missing" if data is None else f"is a {type(data).__name__}"
        raise UsageError(found, option="train_dataset", needed="a list of sentences, or a dataset")
    raise_if_table(data, "train_dataset", is_pair=len(columns) > 1)
    try:
        data = sorted(data) if isinstance(data, set | frozenset) else data  # the order of a set differs by process
        # Without a method `__iter__`, Python reads until an IndexError, which a map-style dataset need not raise.
        items = list(data) if isinstance(data, Iterable) else [data[place] for place in range(len(data))]
    except TypeError as error:
        found = f"is a {type(data).__name__}"
        raise UsageError(found, option="train_dataset", needed="a list of sentences, or a dataset") from error
    if items and all(isinstance(item, Mapping) for item in items):
        if "input_ids" in items[0] and text_column is None:
            return items, None
        groups = _groups(items[0].keys(), text_column, columns)
        items = [tuple(_joined(item, row, groups, columns).values()) for row, item in enumerate(items)]
        items = items if len(columns) > 1 else [text for (text,) in items]
    texts = dict(zip(columns, _lists(items, columns)))
    sentences = with_texts(datasets.Dataset.from_dict(texts, features_of(columns)))
    return sentences, sentences


def _lists(items: list[Any], columns: Columns) -> list[list[str]]:
    """Return a list of texts for each column, from items that are texts, or tuples of them."""
    if len(columns) == 1:
        return [as_texts(items, "train_dataset")]
    for row, item in enumerate(items):
        fits = isinstance(item, list | tuple) and len(item) == len(columns)
        if not fits or not all(isinstance(text, str | None) for text in item):
            needed = f"rows with the columns {' and '.join(columns)}, or tuples of {len(columns)} texts"
            raise UsageError(f"contains {item!r:.60} in row {row:,}", option="train_dataset", needed=needed)
    return [as_texts([item[place] or "" for item in items]) for place in range(len(columns))]


def texts_only(data: Sentences, text_column: Sequence[str] | None, columns: Columns) -> Sentences:
    """Return the texts of each row under the names `columns`; several columns of a text are joined with a space."""
    if isinstance(data, datasets.Dataset) and data.format["type"] is not None:
        if data.format["type"] == "custom":
            fix = "Apply it with `map`, which stores the texts, and pass the result."
            raise UsageError("has a transform, which sentences are read without", option="train_dataset", fix=fix)
        data = data.with_format(None)
    names = data.column_names or list(next(iter(data), {}))
    groups = _groups(names, text_column, columns)
    if any(len(group) > 1 for group in groups):
        how = {"groups": groups, "columns": columns}
        return data.map(_joined, with_indices=True, fn_kwargs=how, remove_columns=names)
    chosen = [name for (name,) in groups]
    texts = data.select_columns(chosen)
    for name in chosen:
        kind = getattr((texts.features or {}).get(name), "dtype", None)
        first = next((row[name] for row in texts if row[name] is not None), "") if kind is None else ""
        if kind not in (None, "string", "large_string", "string_view") or not isinstance(first, str):
            raise UsageError(f"has the column {name}, which has no text", option="train_dataset", needed="sentences")
    changed = {name: new for name, new in zip(chosen, columns) if name != new}
    return texts.rename_columns(changed) if changed else texts


def _groups(names: Iterable[str], text_column: Sequence[str] | None, columns: Columns) -> list[list[str]]:
    """Return the names of the columns of each text. For one text, `text_column` may give several with commas."""
    found, has = list(names), f"has the columns {', '.join(names)}"
    check_number(text_column, columns)
    if len(columns) > 1:
        groups = column_groups(found, columns, text_column)
    elif text_column:
        groups = column_groups(found, ONE_TEXT, text_column)
    else:
        groups = [found if len(found) == 1 else [name for name in TEXT_COLUMNS if name in found][:1]]
    wanted = [name for group in groups for name in group]
    missing = [name for name in wanted if name not in found] or ([] if wanted else [TEXT_COLUMNS[0]])
    if missing:
        is_pair = len(columns) == 1 and ({"anchor", "positive"} <= {*found})
        fix = "Set `view` to pair to train on both columns." if is_pair else "Choose columns with `text_column`."
        raise UsageError(has, option="train_dataset", needed=f"the column {missing[0]}", fix=fix)
    if len(set(wanted)) < len(wanted):
        raise UsageError(f"names a column twice: {' '.join(wanted)}", option="text_column")
    return groups


def check_number(text_column: Sequence[str] | None, columns: Columns) -> None:
    """Raise UsageError if `text_column` does not have a value for each text of a sentence."""
    if text_column and len(text_column) != len(columns):
        few = f"Join columns of one text with commas: {','.join(text_column)}. Set `view` to pair for pairs of texts."
        raise UsageError(
            f"names {counted(len(text_column), 'text')} of each row: {' '.join(text_column)}",
            option="text_column",
            needed=counted(len(columns), "text"),
            fix=few if len(columns) == 1 else f"Name {len(columns)} columns, such as title body.",
        )


def _joined(row: Mapping[str, Any], index: int, groups: list[list[str]], columns: Columns) -> dict[str, str]:
    """Return the texts of a row by column; the columns of a text are joined by a space."""
    texts = {}
    for column, names in zip(columns, groups):
        cells = [row.get(name) for name in names]
        texts[column] = joined_cells(names, cells, lambda: f"cannot be read in row {index}", "train_dataset")
    return texts


def has_texts(row: Mapping[str, Any]) -> bool:
    """Return whether no text of a row is blank, and no two are equal."""
    texts = list(row.values())
    return not any(map(is_blank, texts)) and len({text.strip() for text in texts}) == len(texts)


def with_texts(sentences: datasets.Dataset) -> datasets.Dataset:
    """Return the rows of which `has_texts` is true. Raise UsageError if there are none."""
    kept: list[bool] = []
    for batch in sentences.with_format("arrow").iter(100_000):
        texts = (batch[name].to_pylist() for name in sentences.column_names)
        kept += [has_texts(dict(zip(sentences.column_names, row))) for row in zip(*texts)]
    places = np.flatnonzero(kept)
    is_pair = len(sentences.column_names) > 1
    if len(places) == 0:
        found = "has no row with different texts that are not blank" if is_pair else "has no sentence that is not blank"
        raise UsageError(found, option="train_dataset")
    if len(places) == len(sentences):
        return sentences
    number = len(sentences) - len(places)
    if is_pair:
        logger.warning(_skipped(sentences, kept.index(False), number))
    else:
        logger.info(f"{counted(number, 'blank sentence')} of {len(sentences):,} skipped")
    return sentences.select(places)


def _skipped(sentences: datasets.Dataset, first: int, number: int) -> str:
    """Return the message about rows that are skipped, with the first of them, counted from 0, and its column."""
    blank = next((name for name, text in sentences[first].items() if is_blank(text)), None)
    why = f"the column {blank} is blank" if blank else f"{' and '.join(sentences.column_names)} are equal"
    skipped = f"{counted(number, 'row')} of {len(sentences):,} with a blank text or equal texts skipped"
    return f"{skipped}. The first is row {first:,}, in which {why}."


# Tokens

TRUNCATED = "truncated"  # column that marks truncated sentences
ROWS_AT_ONCE = 10_000  # whose checksum is computed at once
CHECKED_AT_ONCE = 100_000  # rows
SAMPLED_SENTENCES = 10_000  # number of sentences to measure, drawn at random
STREAM_SAMPLE = 1_000  # number of sentences to measure, the first of a stream
QUANTILE = 0.95  # fraction of the sentences that fit
UNKNOWN = 0.1  # fraction of unknown tokens that is too high: text has a few, such as emojis
LENGTH_STEP = 8  # lengths are multiples of it
LEAST_LENGTH = 32  # the papers' length


def training_rows(
    data: Any,
    tokenizer: PreTrainedTokenizerBase,
    args: InforMinTrainingArguments,
    prompt: str,
    longest: int,
    vocabulary: int | None,
    length: int | None,
    text_column: str | Sequence[str] | None,
    columns: Columns,
) -> tuple[Any, Sentences | None, int]:
    """Return tokenized rows, the sentences, and the maximum number of tokens in a row.

    The rows have `input_ids` and `attention_mask`, and those of further texts (see `View.columns`). The sentences are
    None for rows without text.

    Args:
        data: See `as_data`. Tokenized rows are returned as they are; the length is then that of the longest one, and of
            a stream, that of its longest row among the first 1,000.
        tokenizer: Tokenizer of the encoder.
        args: Arguments of the run.
        prompt: Prompt prepended to each sentence.
        longest: Maximum number of tokens that the encoder accepts.
        vocabulary: Number of tokens that the model has embeddings for; None if unknown.
        length: Maximum number of tokens in a row; None for a length that fits the sentences.
        text_column, columns: See `as_data`.
    """
    rows, sentences = as_data(data, text_column, columns)
    columns = columns or ONE_TEXT
    is_stream = isinstance(rows, datasets.IterableDataset)
    if is_stream and args.max_train_samples is not None and args.dataloader_num_workers > 1:
        # Each worker reads an equal part of the sample, of which it may not have enough.
        needed = "`dataloader_num_workers` 0 or 1 for a stream"
        raise UsageError(f"is {args.max_train_samples}", option="max_train_samples", needed=needed)
    rows = draw_sample(rows, args.max_train_samples, args.seed)
    if sentences is None:
        how = (min(longest, args.max_seq_length or longest), vocabulary, names_to_read(columns))
        if is_stream:
            rows, most = checked_stream(rows, *how)
            rows = stream_share(rows, args)
        else:
            most = check_tokens(rows, *how)
        return rows, None, most or length or min(longest, LEAST_LENGTH)
    sentences = rows
    counts = partial(token_counts, sentences, tokenizer, prompt, columns)
    if length is None:
        length = fitting_length(counts(), longest)
    if not 3 <= length <= longest:
        raise UsageError(f"is {length}", option="max_seq_length", needed=f"3 to {longest} tokens for this encoder")
    if len(tokenizer(prompt)["input_ids"]) >= length:
        raise UsageError("leaves no room for a sentence in `max_seq_length`", option="prompt")
    shared = stream_share(sentences, args) if is_stream else sentences
    rows = tokenize(shared, tokenizer, length, prompt, columns)
    if args.process_index == 0:
        warn_if_truncated(rows, counts, length, longest)
        warn_if_unknown(rows, tokenizer)
    return rows.remove_columns(TRUNCATED), sentences, length


def warn_if_truncated(rows: Sentences, counts: Callable[[], np.ndarray], length: int, longest: int) -> None:
    """Warn if more sentences are truncated than `QUANTILE` allows, with the length that fits.

    Args:
        rows: Rows with the column `truncated`. Of a stream, the first sentences are measured instead.
        counts: Returns the number of tokens of a sample of the sentences.
        length: Maximum number of tokens in a row.
        longest: Maximum number of tokens that the encoder accepts.
    """
    if isinstance(rows, datasets.IterableDataset):
        measured = counts()
        truncated, total, what = int((measured > length).sum()), len(measured), "first sentences of the stream"
    else:
        truncated, total = pc.sum(rows.with_format("arrow")[TRUNCATED]).as_py(), len(rows)
        what = "training sentences"
    if truncated <= (1 - QUANTILE) * total:
        return
    measured = counts()
    fitting = fitting_length(measured, longest)
    advice = f"`max_seq_length` {fitting} would fit {np.mean(measured <= fitting):.0%} of them."
    if length >= fitting:
        advice = f"The encoder accepts at most {longest} tokens, so longer sentences must be split."
    logger.warning(
        f"{truncated:,} of {total:,} {what} ({truncated / total:.1%}) are truncated at `max_seq_length` {length}. "
        + advice
    )


def warn_if_unknown(rows: Sentences, tokenizer: PreTrainedTokenizerBase) -> None:
    """Warn if the tokenizer does not know many words of the text, such as those of another script."""
    unknown = tokenizer.unk_token_id
    if unknown in (None, tokenizer.eos_token_id, tokenizer.pad_token_id):  # as in GPT-2
        return
    if isinstance(rows, datasets.IterableDataset):
        first = list(rows.take(STREAM_SAMPLE))
        if not first:  # fewer than a batch: training ends with an error about that
            return
        rows = datasets.Dataset.from_list(first)
    tokens = pc.list_flatten(rows.with_format("arrow")["input_ids"])
    share = pc.mean(pc.equal(tokens, unknown)).as_py()
    if share > UNKNOWN:
        logger.warning(
            f"The tokenizer does not know {share:.0%} of the tokens of the training sentences, which are all read as "
            f"{tokenizer.unk_token}. Choose an encoder for this language."
        )


def draw_sample(sentences: Any, number: int | None, seed: int) -> Any:
    """Return a random sample in the order of the data, or the first sentences of a stream, which is shuffled.

    Args:
        sentences: Dataset, stream, or list of rows.
        number: Number of sentences; None for all.
        seed: Seed of the sample.
    """
    if number is None:
        return sentences
    if isinstance(sentences, datasets.IterableDataset):
        return sentences.take(number)
    if number >= len(sentences):
        return sentences
    places = np.sort(np.random.default_rng(seed).choice(len(sentences), number, replace=False))
    return [sentences[place] for place in places] if isinstance(sentences, list) else sentences.select(places)


def token_counts(
    sentences: Sentences, tokenizer: PreTrainedTokenizerBase, prompt: str, columns: Columns = ONE_TEXT
) -> np.ndarray:
    """Return the number of tokens (n,) of a sample of the texts, including the prompt and special tokens.

    The sample does not depend on the process or the run's seed, so a resumed run gets the same counts.
    """
    sample = sentences
    if isinstance(sentences, datasets.IterableDataset):
        sample = list(sentences.take(STREAM_SAMPLE))
        if not sample:
            raise UsageError("has no sentence that is not blank", option="train_dataset")
        texts = [row[name] for name in columns for row in sample]
    else:
        if len(sentences) > SAMPLED_SENTENCES:
            drawn = np.random.default_rng(0).choice(len(sentences), SAMPLED_SENTENCES, replace=False)
            sample = sentences.select(np.sort(drawn))
        texts = [text for name in columns for text in sample[name]]
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


def tokenize(
    sentences: Any,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    prompt: str = "",
    columns: Columns = ONE_TEXT,
) -> Any:
    """Return `input_ids`, `attention_mask` and `truncated` of every sentence with the prompt; cached on disk.

    The tokens of further texts have the names of their columns as a prefix; `truncated` is that of any text.
    """
    # Not a nested function: workers of a data loader must be able to pickle it.
    tokens = partial(_tokens, tokenizer=tokenizer, max_length=max_seq_length, prompt=prompt, columns=columns)
    if isinstance(sentences, datasets.IterableDataset):
        return sentences.map(tokens, batched=True, remove_columns=list(columns))
    # The hash of a fast tokenizer changes when it is first called, and the cache would be missed.
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    sides = [tokenizer.padding_side, tokenizer.truncation_side, tokenizer.split_special_tokens]
    parts = [sentences._fingerprint, backend.to_str(), *sides, max_seq_length, prompt, TRUNCATED]
    return sentences.map(tokens, batched=True, remove_columns=list(columns), new_fingerprint=Hasher.hash(parts))


def _tokens(
    batch: dict, tokenizer: PreTrainedTokenizerBase, max_length: int, prompt: str, columns: Columns
) -> dict[str, list]:
    found: dict[str, list] = {}
    truncated = np.zeros(len(batch[columns[0]]), bool)
    for column in columns:
        texts = [prompt + text for text in batch[column]]
        tokens = tokenizer(texts, truncation=True, max_length=max_length, return_token_type_ids=False)
        prefix = "" if column == columns[0] else f"{column}_"
        found |= {prefix + name: tokens[name] for name in tokens}
        truncated |= [bool(encoding.overflowing) for encoding in tokens.encodings]
    return {**found, TRUNCATED: truncated.tolist()}


def rows_sha256(rows: Any, names: Sequence[str]) -> str | None:
    """Return the SHA-256 of columns of tokenized rows; None for a stream, and for rows that a transform may change."""
    if isinstance(rows, Sentences) and (not isinstance(rows, datasets.Dataset) or rows.format["type"] == "custom"):
        return None
    digest = hashlib.sha256()
    for _, lists in blocks_of_lists(rows, names, ROWS_AT_ONCE):
        for lengths, values in lists.values():
            digest.update(lengths.tobytes() + values.tobytes())
    return digest.hexdigest()


def blocks_of_lists(
    rows: Any, names: Sequence[str], size: int, first: int = 0
) -> Iterator[tuple[int, dict[str, tuple[np.ndarray, np.ndarray]]]]:
    """Yield the lists in columns of tokenized rows, in blocks of `size` rows, of which `first` is the first number.

    A block has the number of its first row and, by column, the lengths (n,) of the lists, and their values one after
    the other, both int64.

    Raises:
        UsageError: A cell is not a list of whole numbers.
    """
    rows = rows.select_columns(list(names)).with_format("arrow") if isinstance(rows, datasets.Dataset) else rows
    for start in range(0, len(rows), size):
        block = rows[start : start + size]
        read = _lists_of_rows if isinstance(block, list) else _lists_of_table
        yield first + start, {name: read(block, name, first + start) for name in names}


def _lists_of_rows(rows: list[Mapping[str, Any]], name: str, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Return lengths and values of the lists of rows, which may be arrays or tensors."""
    lists = []
    for place, row in enumerate(rows, start):
        try:
            lists.append(np.asarray(row[name], np.int64))
        except (KeyError, TypeError, ValueError):  # missing, None, ragged, or text
            raise _no_list(name, place, type(row.get(name)).__name__) from None
        if lists[-1].ndim != 1:
            raise _no_list(name, place, f"shape {lists[-1].shape}")
    return np.array([len(one) for one in lists], np.int64), np.concatenate(lists)


def _lists_of_table(table: pa.Table, name: str, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Return lengths and values of the lists of an Arrow table."""
    column = table[name].combine_chunks()  # each of shuffled rows is a chunk
    try:
        lengths, values = pc.list_value_length(column), pc.list_flatten(column).cast(pa.int64())
    except pa.ArrowException:
        raise _no_list(name, start, f"type {column.type}") from None
    if lengths.null_count:
        raise _no_list(name, start + pc.index(pc.is_null(column), True).as_py(), "null")
    lengths = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    if values.null_count:
        row = _row_of(pc.index(pc.is_null(values), True).as_py(), lengths)
        raise _no_list(name, start + row, "a list with null")
    return lengths, values.to_numpy(zero_copy_only=False)


def _no_list(name: str, row: int, what: str) -> UsageError:
    """Return the error about a cell of tokenized rows that is not a list of whole numbers."""
    found = f"has no list of whole numbers as {name} in row {row:,} ({what})"
    return UsageError(found, option="train_dataset")


def _row_of(place: int, lengths: np.ndarray) -> int:
    """Return the row of a value among the values of lists with these lengths, which follow each other."""
    return int(np.searchsorted(lengths.cumsum(), place, side="right"))


def check_tokens(rows: Any, longest: int, vocabulary: int | None, names: Sequence[str], first: int = 0) -> int:
    """Return the number of tokens of the longest row; 0 for rows with a transform, which may change them when read.

    Raise UsageError for rows without a mask, without tokens, with too many, or with tokens the encoder lacks.

    Args:
        rows: The tokenized rows.
        longest: Maximum number of tokens that the encoder accepts, or `max_seq_length` if it is smaller.
        vocabulary: Number of tokens that the model has embeddings for; None if unknown.
        names: What a step reads; see `names_to_read`.
        first: Number of the first row.
    """
    if isinstance(rows, datasets.Dataset) and rows.format["type"] == "custom":
        return 0
    if len(rows) == 0:
        raise UsageError("has no rows", option="train_dataset")
    columns = rows.column_names if isinstance(rows, datasets.Dataset) else rows[0]
    missing = [name for name in names if name not in columns]
    if missing:
        found, needed = f"has input_ids and no {missing[0]}", f"the columns {', '.join(names)}, or text"
        raise UsageError(found, option="train_dataset", needed=needed)
    most = 0
    for start, lists in blocks_of_lists(rows, names, CHECKED_AT_ONCE, first):
        for name in names:
            if name.endswith("input_ids"):
                _check_lists(start, lists[name], lists[name.removesuffix("input_ids") + "attention_mask"], vocabulary)
                most = max(most, int(lists[name][0].max()))
    if most > longest:
        needed = f"at most {longest} tokens (the limit of the encoder, or `max_seq_length`)"
        raise UsageError(f"has a row of {most} tokens", option="train_dataset", needed=needed)
    return most


def _check_lists(
    start: int,
    tokens: tuple[np.ndarray, np.ndarray],
    mask: tuple[np.ndarray, np.ndarray],
    vocabulary: int | None,
) -> None:
    """Raise UsageError for a row without tokens, with another mask, or with tokens that the encoder lacks.

    Args:
        start: Number of the first row.
        tokens, mask: Lengths and values of the token ids, and of the masks; see `blocks_of_lists`.
        vocabulary: Number of tokens that the model has embeddings for; None if unknown.
    """
    (lengths, ids), (mask_lengths, marks) = tokens, mask
    if not lengths.all():
        found = f"has no tokens in row {start + lengths.argmin():,}"
        raise UsageError(found, option="train_dataset", fix="Remove it.")
    differ = np.flatnonzero(lengths != mask_lengths)
    if len(differ):
        row = int(differ[0])
        found = f"has {lengths[row]} tokens and an attention_mask of {mask_lengths[row]} in row {start + row:,}"
        raise UsageError(found, option="train_dataset", needed="masks with a number for each token")
    is_read = np.logical_or.reduceat(marks != 0, lengths.cumsum() - lengths)
    if not is_read.all():
        found = f"has no tokens in row {start + is_read.argmin():,}, whose attention_mask has only 0"
        raise UsageError(found, option="train_dataset", fix="Remove it.")
    last = np.iinfo(np.int64).max if vocabulary is None else vocabulary - 1
    wrong = np.flatnonzero((ids < 0) | (ids > last))
    if len(wrong):
        known = "from 0" if vocabulary is None else f"0 to {last:,}"
        raise UsageError(
            f"has token id {ids[wrong[0]]:,} in row {start + _row_of(wrong[0], lengths):,}, and the model has "
            f"embeddings for ids {known}",
            option="train_dataset",
            fix="Tokenize the sentences with the tokenizer of the model.",
        )


def checked_stream(
    stream: datasets.IterableDataset, longest: int, vocabulary: int | None, names: Sequence[str]
) -> tuple[datasets.IterableDataset, int]:
    """Return a stream of tokenized rows that is checked while it is read, and the most tokens of its first rows.

    See `check_tokens`.
    """
    how = {"longest": longest, "vocabulary": vocabulary, "names": names}
    most = check_tokens(list(stream.take(STREAM_SAMPLE)), **how)
    checked = stream.map(_check_block, with_indices=True, batched=True, fn_kwargs=how)
    return checked if stream.features is None else checked.cast(stream.features), most  # map drops the features


def _check_block(block: dict[str, list], places: list[int], **how: Any) -> dict[str, list]:
    check_tokens([dict(zip(block, cells)) for cells in zip(*block.values())], first=places[0], **how)
    return block


class GroupedByLength(LengthGroupedSampler):
    """Groups sentences of about equal length, in an order that only depends on a seed and the epoch.

    That of transformers draws the order from the global random state, which differs between processes.
    """

    def __init__(self, batch_size: int, lengths: list[int], seed: int):
        super().__init__(batch_size, lengths=lengths)
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return super().__iter__()


# A stream in several processes


def stream_share(stream: datasets.IterableDataset, args: InforMinTrainingArguments) -> datasets.IterableDataset:
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
