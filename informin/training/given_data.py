"""Read what a trainer is given as `train_dataset`."""

from collections.abc import Iterable, Mapping, Set, Sized
from os import PathLike
from typing import Any

import datasets
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
from datasets.arrow_dataset import Column
from datasets.iterable_dataset import IterableColumn
from torch.utils.data import Dataset

from informin.errors import UsageError, counted
from informin.textfiles import as_text, shown
from informin.training.sentences import not_blank
from informin.training.streams import TEXT

OPTION = "train_dataset"
REFUSED = str | bytes | PathLike | Mapping | Set
STRINGS = ("string", "large_string", "string_view")


def as_data(data: Any) -> tuple[Any, datasets.Dataset | datasets.IterableDataset | None]:
    """Return the rows, and the sentences among them without blank ones; None for tokenized rows.

    Args:
        data: Sentences: a list, tuple, NumPy array, pandas Series, Arrow array, column of a data set, or iterator,
            which is read completely. Rows with the column `text`: a data set, a stream, a DataFrame, an Arrow table, a
            list of dictionaries. Or tokenized rows with `input_ids`, also of a data set of PyTorch.

    Raises:
        UsageError: `data` is something else, or contains something else.
    """
    if isinstance(data, REFUSED) or not (isinstance(data, Iterable) or hasattr(data, "__getitem__")):
        raise UsageError(
            f"is a {type(data).__name__}",
            option=OPTION,
            needed="a list of sentences, or a data set (one split)",
            fix="informin.training.sentences.load_sentences reads files.",
        )
    data = _as_rows(data)
    if isinstance(data, list):
        data = _of_list(data)
    if not isinstance(data, datasets.Dataset | datasets.IterableDataset):
        return data, None
    columns = data.column_names or list(next(iter(data), {}))  # a stream may not know its columns
    if not columns:
        raise UsageError("contains no sentences", option=OPTION, needed="sentences, or a data set")
    if not {"text", "input_ids"} & set(columns):
        raise UsageError(f"has the columns {shown(columns)}", option=OPTION, needed="a column text or input_ids")
    if "input_ids" in columns:
        return data, None
    _require_text(data)
    sentences = data.select_columns("text")
    if isinstance(sentences, datasets.IterableDataset):
        return data, sentences
    kept = not_blank(sentences)
    if len(kept) == 0:
        found = f"contains no sentences, only {counted(len(sentences), 'blank text')}"
        raise UsageError(found, option=OPTION, needed="sentences, or a data set")
    return data, sentences.select(kept)


def _as_rows(data: Any) -> Any:
    """Return a data set, a list, or another object unchanged."""
    if isinstance(data, pd.DataFrame):
        return datasets.Dataset.from_pandas(data, preserve_index=False)
    if isinstance(data, pa.Table):
        return datasets.Dataset(data)
    source = data.source if isinstance(data, Column | IterableColumn) else None
    if isinstance(source, datasets.Dataset | datasets.IterableDataset):
        name = data.column_name
        return source.select_columns(name).rename_columns({} if name == "text" else {name: "text"})
    if isinstance(data, pa.Array | pa.ChunkedArray):
        return data.to_pylist()
    if isinstance(data, np.ndarray):
        return list(data) if data.ndim else [data]
    if isinstance(data, Dataset):
        return _of_torch(data)
    return (
        data
        if isinstance(data, datasets.Dataset | datasets.IterableDataset) or not isinstance(data, Iterable)
        else list(data)
    )


def _of_torch(data: Any) -> Any:
    """Return a data set of PyTorch unchanged if it has tokenized rows, else the list of its items."""
    size = len(data) if isinstance(data, Sized) else 0
    tokenized = not size or (isinstance(data[0], Mapping) and "input_ids" in data[0])
    return data if tokenized else [data[row] for row in range(size)]


def _of_list(items: list) -> Any:
    """Return a data set of sentences, or the list if it has tokenized rows."""
    if items and all(isinstance(item, Mapping) for item in items):
        if "input_ids" in items[0]:
            return items
        if not any("text" in item for item in items):
            raise UsageError(f"has the columns {shown(items[0])}", option=OPTION, needed="a column text or input_ids")
        items = ["" if item.get("text") is None else item["text"] for item in items]
    for item in items:
        if not isinstance(item, str):
            raise UsageError(
                f"contains {item!r:.60}",
                option=OPTION,
                needed="sentences, or a data set",
                fix="Leave out rows without text.",
            )
        as_text(item, f"`{OPTION}`", None)
    return datasets.Dataset.from_dict({"text": [str(item) for item in items]}, TEXT)


def _require_text(data: datasets.Dataset | datasets.IterableDataset) -> None:
    """Raise UsageError if the column `text` has another type. A stream may not know its types before it is read."""
    kind = (data.features or {}).get("text")
    if kind is None or getattr(kind, "dtype", None) not in STRINGS:
        first = next((row["text"] for row in data if row["text"] is not None), "")
        if not isinstance(first, str):
            found = f"contains {first!r:.60} in the column text"
            raise UsageError(found, option=OPTION, needed="sentences, or a data set")
