"""Read what a trainer is given as `train_dataset`."""

from collections.abc import Iterable, Mapping, Sequence, Set, Sized
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
from informin.training.sentences import has_text, not_blank
from informin.training.streams import TEXT

OPTION = "train_dataset"
NAMES = ("text", "sentence")  # of the column of sentences
_SETS = datasets.Dataset | datasets.IterableDataset
REFUSED = str | bytes | PathLike | Mapping | Set
STRINGS = ("string", "large_string", "string_view")


def as_data(
    data: Any, text_column: str | None = None
) -> tuple[Any, datasets.Dataset | datasets.IterableDataset | None]:
    """Return the rows, and the sentences among them without blank ones; None for tokenized rows.

    Args:
        data: Sentences: a list, tuple, NumPy array, pandas Series, Arrow array, column of a data set, or iterator,
            which is read completely. Rows with a column of sentences: a data set, a stream, a DataFrame, an Arrow
            table, a list of dictionaries. A `DatasetDict`, whose split train is used, or another dictionary of data
            sets, which are joined. Or tokenized rows with `input_ids`, also of a data set of PyTorch.
        text_column: Name of the column of sentences. Default: `text`, `sentence`, or the only column.

    Raises:
        UsageError: `data` is something else, or contains something else.
    """
    if isinstance(data, Mapping) and data and all(isinstance(one, _SETS) for one in data.values()):
        data = _one_set(data, text_column)
    if isinstance(data, REFUSED) or not (isinstance(data, Iterable) or hasattr(data, "__getitem__")):
        raise UsageError(
            f"is a {type(data).__name__}",
            option=OPTION,
            needed="a list of sentences, or a dataset (one split)",
            fix="informin.training.sentences.load_sentences reads files.",
        )
    data = _as_rows(data)
    if isinstance(data, list):
        data, text_column = _of_list(data, text_column), None
    if not isinstance(data, datasets.Dataset | datasets.IterableDataset):
        return data, None
    columns = data.column_names or list(next(iter(data), {}))  # a stream may not know its columns
    if not columns:
        raise UsageError("contains no sentences", option=OPTION, needed="sentences, or a dataset")
    if "input_ids" in columns and text_column is None:
        return data, None
    name = _column(columns, text_column, data.features)
    if name != "text":
        data = data.select_columns(name).rename_columns({name: "text"})
    if getattr((data.features or {}).get("text"), "dtype", None) not in STRINGS:
        # A stream may not know its types before it is read.
        first = next((row["text"] for row in data if row["text"] is not None), "")
        if not isinstance(first, str):
            found = f"contains {first!r:.60} in the column text"
            raise UsageError(found, option=OPTION, needed="sentences, or a dataset")
    sentences = data.select_columns("text")
    if isinstance(sentences, datasets.IterableDataset):
        kept = sentences.filter(has_text)  # which drops the features
        return data, kept if sentences.features is None else kept.cast(sentences.features)
    kept = not_blank(sentences)
    if len(kept) == 0:
        found = f"contains no sentences, only {counted(len(sentences), 'blank text')}"
        raise UsageError(found, option=OPTION, needed="sentences, or a dataset")
    return data, sentences.select(kept)


def _column(columns: Sequence[str], text_column: str | None, kinds: Mapping | None = None) -> str:
    """Return the name of the column of sentences; `kinds` has the types of the columns, if they are known."""
    if text_column is not None:
        if text_column not in columns:
            found = f"is {text_column}, and the data has the columns {shown(columns)}"
            raise UsageError(found, option="text_column", needed="one of them")
        return text_column
    for name in NAMES:
        if name in columns:
            return name
    if len(columns) == 1 and getattr((kinds or {}).get(columns[0]), "dtype", None) in STRINGS:
        return columns[0]
    fix = "Name the column with `text_column`."
    raise UsageError(f"has the columns {shown(columns)}", option=OPTION, needed="a column text or input_ids", fix=fix)


def _one_set(data: Mapping, text_column: str | None) -> Any:
    """Return the split train of a `DatasetDict`, or the data sets of another dictionary as one."""
    if isinstance(data, datasets.DatasetDict | datasets.IterableDatasetDict):
        if "train" not in data:
            raise UsageError(f"has the splits {shown(data)}", option=OPTION, needed="a split train, or a data set")
        return data["train"]
    parts = []
    for one in data.values():
        name = _column(one.column_names or ["text"], text_column, one.features)
        parts.append(one.select_columns(name).rename_columns({} if name == "text" else {name: "text"}))
    return datasets.concatenate_datasets(parts)


def _as_rows(data: Any) -> Any:
    """Return a data set, a list, or another object unchanged."""
    if isinstance(data, datasets.Dataset):
        if data.format["type"] == "custom":
            fix = "Give the data set without it, and change the texts with `map`."
            raise UsageError("is a data set with a transform", option=OPTION, fix=fix)
        return data if data.format["type"] is None else data.with_format(None)
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
    if isinstance(data, Dataset):  # of PyTorch
        size = len(data) if isinstance(data, Sized) else 0
        tokenized = not size or (isinstance(data[0], Mapping) and "input_ids" in data[0])
        return data if tokenized else [data[row] for row in range(size)]
    return (
        data
        if isinstance(data, datasets.Dataset | datasets.IterableDataset) or not isinstance(data, Iterable)
        else list(data)
    )


def _of_list(items: list, text_column: str | None = None) -> Any:
    """Return a data set of sentences, or the list if it has tokenized rows."""
    if items and all(isinstance(item, Mapping) for item in items):
        if "input_ids" in items[0] and text_column is None:
            return items
        name = _column(list(dict.fromkeys(key for item in items for key in item)), text_column)
        items = ["" if item.get(name) is None else item[name] for item in items]
    for item in items:
        if not isinstance(item, str):
            raise UsageError(
                f"contains {item!r:.60}",
                option=OPTION,
                needed="sentences, or a dataset",
                fix="Leave out rows without text.",
            )
        as_text(item, f"`{OPTION}`", None)
    return datasets.Dataset.from_dict({"text": [str(item) for item in items]}, TEXT)
