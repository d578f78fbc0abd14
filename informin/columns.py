"""Read the other columns of a file of texts, such as an id, so that results can be joined with the file."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from informin.arrowfiles import KINDS, column_cells
from informin.arrowfiles import column_names as arrow_columns
from informin.jsonfiles import json_records
from informin.textfiles import FIRST_ROWS, JSON, TABLES, plain_suffix, split_columns, table_rows


def column_names(path: Path, values_only: bool = True) -> list[str]:
    """Return the names of a file's columns; none for a text file.

    Args:
        path: Path of the file.
        values_only: Leave out columns of lists and objects, and those that share a name.
    """
    kind, names = plain_suffix(path), []
    if kind in TABLES:
        names = next(table_rows(path), (0, []))[1]
    elif kind in KINDS:
        names = arrow_columns(path, values_only)
    elif kind in JSON:
        first = [record for _, record in islice(json_records(path), FIRST_ROWS)]
        nested = {key for record in first for key, cell in record.items() if isinstance(cell, list | dict)}
        names = list(dict.fromkeys(key for record in first for key in record))
        return [key for key in names if not (values_only and key in nested)]
    return [name for name, number in Counter(names).items() if number == 1] if values_only else names


def other_columns(path: Path, text_column: str | None) -> list[str]:
    """Return the names of the columns that `read_sentences` does not read."""
    names = column_names(path)
    alone = text_column is None and len(column_names(path, values_only=False)) == 1
    return [] if alone else [name for name in names if name not in split_columns(text_column or "text")]


def read_cells(path: Path, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of the named columns as text, for each row in the order of `read_sentences`."""
    kind = plain_suffix(path)
    if kind in TABLES:
        rows = table_rows(path)
        _, header = next(rows, (0, []))
        places = [header.index(name) for name in names]
        yield from (tuple(row[place] if place < len(row) else "" for place in places) for _, row in rows)
    elif kind in KINDS:
        yield from (tuple(map(_as_cell, row)) for row in zip(*(column_cells(path, name) for name in names)))
    else:
        yield from (tuple(_as_cell(record.get(name)) for name in names) for _, record in json_records(path))


def _as_cell(cell: object) -> str:
    """Return a cell as text: text as it is, anything else as JSON."""
    if cell is None:
        return ""
    return cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False, default=str)
