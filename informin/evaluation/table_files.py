"""The rows of the user's own evaluation files: TSV, CSV or JSONL, read by the names of their columns."""

import math
import reprlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from informin.errors import UsageError
from informin.textfiles import TABLES, as_text, json_records, plain_suffix, require_file, shown, table_rows

LARGEST = 1e9  # of numbers that are read


def rows_by_column(path: Path, option: str, columns: Sequence[str]) -> Iterator[tuple[int, dict]]:
    """The rows that are not blank, by column, with the numbers of their lines. Further columns are there too.

    Args:
        option: what names the file, without dashes.
        columns: what every row needs.

    Raises:
        UsageError: no such file, another kind of file, no such column, a row without one of them; or as `table_rows`
            and `json_records`.
    """
    require_file(f"`{option}`", path)
    for number, record in _records(path, option, columns):
        missing = [name for name in columns if record.get(name) in (None, "")]
        if missing:
            raise UsageError(
                f"{path}, line {number}: no {' and no '.join(missing)}. Every row needs {', '.join(columns)}; "
                f"found {shown(record)}."
            )
        yield number, record


def text_in(record: dict, column: str, path: Path, number: int) -> str:
    """A cell that is a sentence. Raises UsageError where it is something else, or no valid Unicode."""
    if not isinstance(record[column], str):
        raise UsageError(f"{path}, line {number}: {column} is {reprlib.repr(record[column])}; needed text.")
    return as_text(record[column], path, number)


def as_number(cell: object, column: str, path: Path, number: int) -> float:
    """A cell that is a number, from -10^9 to 10^9. Raises UsageError where it is something else, or not finite."""
    try:
        value = math.nan if isinstance(cell, bool) else float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not abs(value) <= LARGEST:  # NaN included
        raise UsageError(
            f"{path}, line {number}: the {column} is {reprlib.repr(cell)}; needed a number between -10^9 and 10^9."
        )
    return value


def _records(path: Path, option: str, columns: Sequence[str]) -> Iterator[tuple[int, dict]]:
    kind = plain_suffix(path)
    if kind == ".jsonl":
        return ((number, record) for number, record in json_records(path) if record)
    if kind not in TABLES:
        raise UsageError(f"`{option}`: {path} ends in {kind or 'nothing'}; needed .tsv, .csv or .jsonl.")
    rows = table_rows(path)
    _, header = next(rows, (0, []))
    absent = [name for name in columns if name not in header]
    if absent:
        raise UsageError(
            f"{path}: no column {' and no column '.join(absent)} in its first line; found {shown(header)}."
        )
    repeated = [name for name in dict.fromkeys(header) if name and header.count(name) > 1]
    if repeated:
        raise UsageError(f"{path}: found several columns {shown(repeated)}; needed one. Rename the others.")
    return ((number, dict(zip(header, row))) for number, row in rows if row)
