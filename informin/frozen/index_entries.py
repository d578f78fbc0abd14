"""What an index holds: its settings, and the texts with the user's ids and fields, as JSON holds them."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from datetime import date, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

from informin.errors import UsageError, counted
from informin.frozen.bm25 import WORD_WEIGHT
from informin.options import described, fits
from informin.texts import as_texts, is_blank, is_missing, raise_if_set


@dataclass(frozen=True)
class IndexRecord:
    """What index.json holds.

    Attributes:
        model: Name or folder of the model.
        model_sha256: Checksum of the model.
        loading: Options of `load_model`.
        precision: Precision of the weights that embedded the texts when the index was built. `Index.load` chooses that
            of queries.
        similarity: `dot` for a model that is compared by dot product, and `cosine` for others.
        language, smooth, word_weight, document_prompt, query_prompt, queries, rerank: See `Index.build`.
        projected: Number of texts that the projection of the token vectors was fitted to; 0 without `rerank`.
        next_row: Number of the next text that is added.
        scores: `UnrelatedScores` of the texts; None for fewer than 100 different texts, or if they form no topics.
        measured: `scores` are those of the texts with lower row numbers.
        threshold: Cosine that at most about one unrelated text per query exceeds; None without `scores`.
        words: Versions of all that decides what the words of a text are. With other versions, words are built again.
        data: Name of the folder of the data.
        sizes: Bytes of each file in it.
        samples: Checksum of a part of each file; see `informin.frozen.index_files.sample_checksum`.
        texts_sha256: Checksum of the texts, whose order is that of the vectors.
    """

    model: str
    model_sha256: str
    loading: dict[str, Any] = field(default_factory=dict)
    precision: str = "fp32"
    similarity: str = "cosine"
    language: str = "english"
    smooth: bool = False
    word_weight: float = WORD_WEIGHT
    document_prompt: str | None = None
    query_prompt: str | None = None
    queries: str = "model"
    rerank: bool = False
    projected: int = 0
    next_row: int = 0
    scores: dict[str, Any] | None = None
    measured: int = 0
    threshold: float | None = None
    words: dict[str, Any] = field(default_factory=dict)
    data: str = ""
    sizes: dict[str, int] = field(default_factory=dict)
    samples: dict[str, str] = field(default_factory=dict)
    texts_sha256: str = ""


def parse_record(values: dict[str, Any], name: str) -> IndexRecord:
    """Return the record in the values of an index.json.

    Args:
        name: Name of the file, for errors.

    Raises:
        UsageError: A value is missing, unknown to this version, or of another type.
    """
    known = fields(IndexRecord)
    required = {each.name for each in known if each.default is MISSING and each.default_factory is MISSING}
    missing = required - set(values)
    unknown = set(values) - {each.name for each in known}
    if missing or unknown:
        found = f"{name} has the unknown entry {min(unknown)!r}" if unknown else f"{name} lacks {min(missing)!r}"
        raise UsageError(found, fix="Build the index again, or use the version of informin that wrote it.")
    for each in known:
        if each.name in values and not fits(values[each.name], each.type):
            found = f"{name} has {values[each.name]!r:.60} as {each.name!r}"
            raise UsageError(found, needed=described(each.type), fix="Correct it, or build the index again.")
    return IndexRecord(**values)


@dataclass(frozen=True)
class Entries:
    """N texts of an index.

    Attributes:
        rows: (N,) numbers of the texts, ascending.
        texts: The texts.
        ids: The user's ids; None for texts without one.
        fields: Further values by name.
    """

    rows: np.ndarray
    texts: list[str]
    ids: list[Any]
    fields: list[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.texts)

    def __add__(self, other: "Entries") -> "Entries":
        rows = np.append(self.rows, other.rows)
        return Entries(rows, self.texts + other.texts, self.ids + other.ids, self.fields + other.fields)

    def selected(self, indices: Iterable[int]) -> "Entries":
        """Return some of the entries, by their indices from 0 to N - 1."""
        indices = np.asarray(list(indices), int)
        texts = [self.texts[index] for index in indices]
        ids = [self.ids[index] for index in indices]
        return Entries(self.rows[indices], texts, ids, [self.fields[index] for index in indices])

    def having(self, where: Mapping[str, Any]) -> np.ndarray:
        """Return whether each text has these values in its fields, (N,) booleans.

        Args:
            where: Values by the name of the field. A list stands for any of its values.

        Raises:
            UsageError: It is empty or not a mapping, or no text has a field of this name.
        """
        if not isinstance(where, Mapping) or not where:
            needed = 'values by the names of fields, such as {"product": "svn"}'
            raise UsageError(f"is {where!r:.60}", option="where", needed=needed)
        names = dict.fromkeys(name for values in self.fields for name in values)
        matching = np.ones(len(self), bool)
        for name, value in ((str(name), value) for name, value in where.items()):
            if name not in names:
                needed = f"one of: {', '.join(names)}" if names else "an index of texts with fields"
                raise UsageError(f"has the field {name!r}, which no text has", option="where", needed=needed)
            wanted = as_json(value, "where")
            choices = wanted if isinstance(wanted, list) else [wanted]
            matching &= [values.get(name) in choices for values in self.fields]
        return matching

    def lines(self) -> str:
        """Return one line of JSON for each entry: the text, or an object with its id and fields."""
        parts = zip(self.texts, self.ids, self.fields)
        return "".join(f"{json.dumps(_value(text, name, values))}\n" for text, name, values in parts)


def new_entries(
    texts: Iterable[str],
    ids: Sequence[Any] | None = None,
    fields: Sequence[Mapping[str, Any]] | None = None,
    first_row: int = 0,
) -> Entries:
    """Return the texts that are not blank, numbered in the order of the list.

    Args:
        texts: N texts.
        ids: N ids; see `as_json`.
        fields: N mappings of further values; see `as_json`.
        first_row: Row number of the first text.

    Raises:
        UsageError: There are fewer or more ids or fields than texts, or one of them cannot be written as JSON.
    """
    texts = as_texts(texts)
    raise_if_set(ids, "ids")
    if isinstance(ids, str | bytes):
        raise UsageError(f"is one text, {ids!r:.40}", option="ids", needed="a list")
    ids = [None] * len(texts) if ids is None else [as_json(each, "ids") for each in ids]
    values = [{} for _ in texts] if fields is None else [_as_fields(each) for each in fields]
    for option, given in (("ids", ids), ("fields", values)):
        if len(given) != len(texts):
            raise UsageError(f"has {counted(len(given), 'item')} for {counted(len(texts), 'text')}", option=option)
    every = Entries(np.arange(first_row, first_row + len(texts)), texts, ids, values)
    return every.selected(index for index, text in enumerate(texts) if not is_blank(text))


def parse_entries(lines: str, rows: np.ndarray) -> Entries:
    """Return what `Entries.lines` wrote.

    Raises:
        ValueError: A line is not JSON, or there are more or fewer lines than rows.
    """
    values = [json.loads(line) for line in lines.splitlines()]
    if len(values) != len(rows):
        raise ValueError(f"{counted(len(values), 'text')} for {counted(len(rows), 'row')}")
    whole: list[dict[str, Any]] = [{"text": value} if isinstance(value, str) else value for value in values]
    ids = [value.get("id") for value in whole]
    return Entries(rows, [value["text"] for value in whole], ids, [value.get("fields", {}) for value in whole])


def as_json(value: Any, option: str) -> Any:
    """Return a value as JSON holds it, so that a saved index has the same values as one in memory.

    Numbers of NumPy become those of Python; dates, times, decimals and UUIDs become text, dates and times in ISO 8601.
    Missing values become None: NaN and NaT of Python, NumPy and pandas, pandas.NA, and masked values of NumPy.

    Args:
        value: The value.
        option: Name of the option that has it, for errors.

    Raises:
        UsageError: JSON cannot hold it.
    """
    if is_missing(value):
        return None
    if isinstance(value, np.generic):
        value = str(value) if isinstance(value, np.datetime64) else value.item()
    if isinstance(value, str | int):
        return value
    if isinstance(value, float) and not math.isinf(value):
        return value
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): as_json(each, option) for name, each in value.items()}
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim):
        return [as_json(each, option) for each in value]
    raise UsageError(
        f"contains {value!r:.60}",
        option=option,
        needed="texts, numbers, dates, or lists of them",
        fix="Convert it to text, or leave it out.",
    )


def _value(text: str, name: Any, values: dict[str, Any]) -> Any:
    if name is None and not values:
        return text
    return {"text": text, "id": name, "fields": values}


def _as_fields(values: Any) -> dict[str, Any]:
    """Return the fields of one text."""
    if not isinstance(values, Mapping):
        raise UsageError(f"contains {values!r:.60}", option="fields", needed="a dictionary for each text")
    return as_json(values, "fields")
