"""Read a file of sentences for the search page, with labels if it has a column `label`."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from informin.arrowfiles import KINDS, column_cells, column_names
from informin.errors import UsageError, counted
from informin.jsonfiles import json_records
from informin.textfiles import (
    FIRST_ROWS,
    JSON,
    TABLES,
    is_blank,
    plain_suffix,
    read_sentences,
    require_file,
    table_rows,
)
from informin.textlines import shortened

LABEL = "label"  # column


@dataclass(frozen=True)
class Sentences:
    """N sentences, without blank ones, with one label each or none.

    Attributes:
        texts: N sentences, which may repeat.
        labels: N labels; None if the file has no column `label`. A sentence without a label has "".
    """

    texts: list[str]
    labels: list[str] | None = None

    def distinct(self) -> list[int]:
        """Return the rows of the first occurrence of each sentence."""
        first: dict[str, int] = {}
        for row, text in enumerate(self.texts):
            first.setdefault(text, row)
        return list(first.values())

    def take(self, rows: list[int]) -> "Sentences":
        """Return the sentences of these rows."""
        labels = self.labels and [self.labels[row] for row in rows]
        return Sentences([self.texts[row] for row in rows], labels)


def load_labeled_sentences(path: str | Path, text_column: str | None = None, option: str = "sentences") -> Sentences:
    """Read the sentences of a file as `informin embed` does, and their labels.

    Args:
        path: Text file with a sentence per line, CSV, TSV, JSONL or Parquet file.
        text_column: Column with the sentences; None for `text`, or the only column.
        option: Name of the option that names the file, without dashes.

    Raises:
        UsageError: The file does not exist, cannot be read, or has no sentence.
    """
    path = Path(path)
    require_file(f"`{option}`", path)
    texts = list(read_sentences(path, text_column))
    kept = [row for row, text in enumerate(texts) if not is_blank(text)]
    if not kept:
        raise UsageError(
            f"is {path}, which has {counted(len(texts), 'line')} and no sentence", option=option, needed="sentences"
        )
    labels = list(_labels(path)) if LABEL in _columns(path) and text_column != LABEL else None
    if labels is not None and len(labels) != len(texts):
        raise shortened(path)
    return Sentences(texts, labels).take(kept)


def _columns(path: Path) -> Iterable[str]:
    """Return the columns of a table, or nothing for a text file."""
    kind = plain_suffix(path)
    if kind in TABLES:
        return next(table_rows(path), (0, []))[1]
    if kind in JSON:
        return {key: None for _, record in islice(json_records(path), FIRST_ROWS) for key in record}
    return column_names(path) if kind in KINDS else ()


def _labels(path: Path) -> Iterator[str]:
    """Yield the label of every row, in the order of `read_sentences`."""
    kind = plain_suffix(path)
    if kind in TABLES:
        rows = table_rows(path)
        column = next(rows)[1].index(LABEL)
        yield from (row[column].strip() if len(row) > column else "" for _, row in rows)
    elif kind in KINDS:
        yield from map(_as_label, column_cells(path, LABEL))
    else:
        yield from (_as_label(record.get(LABEL)) for _, record in json_records(path))


def _as_label(cell: object) -> str:
    """Return a cell as a label: text and numbers as they are, anything else as JSON."""
    if cell is None:
        return ""
    return cell.strip() if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False, default=str)
