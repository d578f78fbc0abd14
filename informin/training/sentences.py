"""The training sentences: from files, the Hub or Python, as a data set with the column `text`; and evaluation data."""

import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import datasets
import numpy as np
import torch
from datasets.exceptions import DatasetGenerationError

from informin.errors import UsageError, counted
from informin.evaluation.collections import load_retrieval_pairs
from informin.evaluation.development import Development, DevelopmentSet
from informin.evaluation.drift import stsb_dev
from informin.evaluation.labels import load_labels
from informin.evaluation.pairs import load_pairs
from informin.evaluation.senteval import hub_file, load_stsb_dev, senteval_folder
from informin.hub_access import HUB_SENTENCES, hub_is_reachable
from informin.texts import as_texts, find_files, is_blank, joined_cells, raise_if_table, read_texts
from informin.training.inputs import DataArguments

logger = logging.getLogger(__name__)

Sentences: TypeAlias = datasets.Dataset | datasets.IterableDataset
TEXT = datasets.Features({"text": datasets.Value("string")})
COLUMN_NAMES = ("text", "sentence")  # of the column of sentences
BUFFER = 10_000  # size of the buffer in which a stream is shuffled


def load_sentences(args: DataArguments, seed: int) -> Sentences:
    """Return the training sentences as a data set with the column `text`, without blank ones.

    Args:
        args: Where to load them from.
        seed: Seed for shuffling a stream.

    Raises:
        UsageError: A file or column does not exist or cannot be read.
    """
    if args.dataset_name:
        hub_is_reachable()  # if not, only the cache is searched, without retries
        from_hub = datasets.load_dataset(
            args.dataset_name, args.dataset_config, split=args.dataset_split, streaming=args.streaming
        )
        sentences = text_only(from_hub, args.text_column)
    else:
        files = find_files(args.train_file or [hub_file(HUB_SENTENCES, "`train_file` FILE")])
        _check_cache()
        if args.streaming:
            next(_rows_of_all(files, args.text_column))
            # Each file is a shard, so that several workers can read them.
            options: dict[str, Any] = {"files": list(map(str, files)), "text_column": args.text_column}
            sentences = datasets.IterableDataset.from_generator(_rows_of, features=TEXT, gen_kwargs=options)
        else:
            sentences = _read_files(list(map(str, files)), args.text_column)
    if not isinstance(sentences, datasets.IterableDataset):
        return without_blanks(sentences)
    return sentences.filter(has_text).shuffle(seed=seed, buffer_size=BUFFER).cast(TEXT)  # filter drops the features


def _read_files(files: list[str], text_column: str | None) -> datasets.Dataset:
    # Size and modification time are part of the cache key, so that changes cause a reload.
    stamps = [(file.stat().st_size, file.stat().st_mtime_ns) for file in find_files(files)]
    # Tuples, because each item of a list is a shard with its own call of the generator.
    options: dict[str, Any] = {"files": tuple(files), "text_column": text_column, "stamps": tuple(stamps)}
    try:
        return datasets.Dataset.from_generator(_rows_of_all, features=TEXT, gen_kwargs=options, split="train")
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, UsageError | OSError):
            raise error.__cause__ from None
        raise


def _rows_of(files: Sequence[str | Path], text_column: str | None) -> Iterator[dict[str, str]]:
    """Yield the sentences of files as rows."""
    for text in read_texts(files, text_column):
        yield {"text": text}


def _rows_of_all(files: Sequence[str | Path], text_column: str | None, stamps: tuple = ()) -> Iterator[dict[str, str]]:
    """Yield the sentences of files as rows. Raises UsageError if there are none.

    `stamps` is only part of the cache key.
    """
    rows = _rows_of(files, text_column)
    first = next(rows, None)
    if first is None:
        raise UsageError("contains no text that is not blank", option="train_file")
    yield first
    yield from rows


def _check_cache() -> None:
    """Raise UsageError if `datasets` cannot write its cache, as in a container without a home folder."""
    folder = datasets.config.HF_DATASETS_CACHE
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as error:
        found = f"The sentences are cached in {folder}, which cannot be written ({error.strerror})"
        raise UsageError(found, fix="Set the environment variable HF_HOME to a folder that can be written.") from None


def as_data(data: Any, text_column: str | None = None) -> tuple[Any, Sentences | None]:
    """Return the rows of a trainer's `train_dataset`, and the sentences among them; None for tokenized rows.

    Args:
        data: Sentences as a list or another iterable, such as a column, an array or a Series. Rows with a column of
            sentences: a data set, a stream, a list of dictionaries. A `DatasetDict`, whose split train is used. Or
            tokenized rows with `input_ids`.
        text_column: Name of the column of sentences. Default: `text`, `sentence`, or the only column.

    Raises:
        UsageError: `data` is something else, or contains something else.
    """
    if isinstance(data, datasets.DatasetDict | datasets.IterableDatasetDict):
        data = data["train"]
    if isinstance(data, Sentences):
        columns = data.column_names or list(next(iter(data), {}))  # a stream may not know its columns
        if "input_ids" in columns and text_column is None:
            return data, None
        sentences = text_only(data, text_column)
        if isinstance(sentences, datasets.IterableDataset):
            kept = sentences.filter(has_text)  # which drops the features
            kept = kept if sentences.features is None else kept.cast(sentences.features)
            return kept, kept
        sentences = without_blanks(sentences)
        return sentences, sentences
    if isinstance(data, torch.utils.data.IterableDataset):
        fix = "Use datasets.IterableDataset.from_generator, whose rows have the column `text`."
        raise UsageError("is an IterableDataset of PyTorch", option="train_dataset", fix=fix)
    if data is None or isinstance(data, str | bytes | PathLike | Real):
        found = "is missing" if data is None else f"is a {type(data).__name__}"
        raise UsageError(found, option="train_dataset", needed="a list of sentences, or a data set")
    raise_if_table(data, "train_dataset")
    items = _items(data)
    if items and all(isinstance(item, Mapping) for item in items):
        if "input_ids" in items[0] and text_column is None:
            return items, None
        names = _text_columns(items[0].keys(), text_column)
        items = [_joined(item, row, names)["text"] for row, item in enumerate(items)]
    texts = {"text": as_texts(items, "train_dataset")}
    sentences = without_blanks(datasets.Dataset.from_dict(texts, TEXT))
    return sentences, sentences


def _items(data: Any) -> list[Any]:
    """Return the items of an iterable, or of a map-style data set, such as those of PyTorch.

    Without a method `__iter__`, Python reads until an IndexError, which a map-style data set need not raise.
    """
    if isinstance(data, Iterable):
        return list(data)
    try:
        return [data[place] for place in range(len(data))]
    except TypeError as error:
        found = f"is a {type(data).__name__}"
        raise UsageError(found, option="train_dataset", needed="a list of sentences, or a data set") from error


def text_only(data: Sentences, text_column: str | None) -> Sentences:
    """Return the column of sentences under the name `text`; several columns are joined with a space."""
    if isinstance(data, datasets.Dataset) and data.format["type"] is not None:
        data = data.with_format(None)
    columns = data.column_names or list(next(iter(data), {}))
    name, *others = _text_columns(columns, text_column)
    if others:
        return data.map(_joined, with_indices=True, fn_kwargs={"names": [name, *others]}, remove_columns=columns)
    one = data.select_columns(name)
    one = one if name == "text" else one.rename_columns({name: "text"})
    kind = getattr((one.features or {}).get("text"), "dtype", None)
    first = next((row["text"] for row in one if row["text"] is not None), "") if kind is None else ""
    if kind not in (None, "string", "large_string", "string_view") or not isinstance(first, str):
        raise UsageError(f"has the column {name}, which has no text", option="train_dataset", needed="sentences")
    return one


def _text_columns(columns: Iterable[str], text_column: str | None) -> list[str]:
    """Return the names of the columns of sentences, of which `text_column` may give several with commas."""
    names = list(columns)
    if not text_column and len(names) == 1:
        return names
    wanted = [name.strip() for name in text_column.split(",")] if text_column else []
    found = wanted or [name for name in COLUMN_NAMES if name in names][:1]
    missing = [name for name in found if name not in names]
    if missing or not found:
        needed = f"the column {(missing or COLUMN_NAMES)[0]}"
        raise UsageError(f"has the columns {', '.join(names)}", option="train_dataset", needed=needed)
    return found


def _joined(row: Mapping[str, Any], index: int, names: list[str]) -> dict[str, str]:
    """Return the texts of some columns of a row, joined by a space, as the column `text`."""
    cells = [row.get(name) for name in names]
    return {"text": joined_cells(names, cells, lambda: f"cannot be read in row {index}", "train_dataset")}


def has_text(row: dict) -> bool:
    """Return whether the `text` of a row is not blank."""
    return not is_blank(row["text"])


def without_blanks(sentences: datasets.Dataset) -> datasets.Dataset:
    """Return the rows whose `text` is not blank. Raise UsageError if there are none."""
    batches = (batch["text"].to_pylist() for batch in sentences.with_format("arrow").iter(100_000))
    kept = np.flatnonzero([not is_blank(text) for batch in batches for text in batch])
    if len(kept) == 0:
        raise UsageError("has no sentence that is not blank", option="train_dataset")
    if len(kept) == len(sentences):
        return sentences
    logger.info(f"{counted(len(sentences) - len(kept), 'blank sentence')} of {len(sentences):,} skipped")
    return sentences.select(kept)


def draw_sample(sentences: Sentences, number: int | None, seed: int) -> Sentences:
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
    return sentences.select(np.sort(np.random.default_rng(seed).choice(len(sentences), number, replace=False)))


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
