"""Reader for evaluation files (TSV, CSV or JSONL) by column name."""

import math
import reprlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from informin.errors import UsageError
from informin.jsonfiles import json_records
from informin.textfiles import JSON, TABLES, as_text, plain_suffix, refuse_surrogates, require_file, shown, table_rows

LARGEST = 1e9  # absolute value of a number


def rows_by_column(path: Path, option: str, columns: Sequence[str]) -> Iterator[tuple[int, dict]]:
    """Yield the line number and the cells by column of each nonblank row, including columns not asked for.

    Args:
        option: Name of the option that names the file, without dashes.
        columns: Required columns.

    Raises:
        UsageError: The file does not exist or has another format, a column is missing, or a row has an empty cell in
            a required column; or as `table_rows` and `json_records`.
    """
    require_file(f"`{option}`", path)
    for number, record in _records(path, option, columns):
        missing = [name for name in columns if record.get(name) in (None, "")]
        if missing:
            raise UsageError(
                f"{path}, line {number}: no {' and no '.join(missing)} in the columns {shown(record)}",
                needed=f"a value for {', '.join(columns)} in every row",
            )
        for cell in (cell for cell in record.values() if isinstance(cell, str) and not cell.isascii()):
            refuse_surrogates(cell, f"{path}, line {number}")
        yield number, record


def text_in(record: dict, column: str, path: Path, number: int) -> str:
    """Return a cell that contains text. Raises UsageError if it is not a string or not valid Unicode."""
    if not isinstance(record[column], str):
        raise UsageError(f"{path}, line {number}: {column} is {reprlib.repr(record[column])}", needed="text")
    return as_text(record[column], path, number)


def as_number(cell: object, column: str, path: Path, number: int) -> float:
    """Return a cell as a number from -10^9 to 10^9. Raises UsageError if it is not one."""
    try:
        value = math.nan if isinstance(cell, bool) else float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not abs(value) <= LARGEST:  # NaN included
        raise UsageError(
            f"{path}, line {number}: the {column} is {reprlib.repr(cell)}", needed="a number between -10^9 and 10^9"
        )
    return value


def _records(path: Path, option: str, columns: Sequence[str]) -> Iterator[tuple[int, dict]]:
    kind = plain_suffix(path)
    if kind in JSON:
        return ((number, record) for number, record in json_records(path) if record)
    if kind not in TABLES:
        raise UsageError(
            f"names {path}, which has the suffix {kind or '(none)'}", option=option, needed=".tsv, .csv or .jsonl"
        )
    rows = table_rows(path)
    _, header = next(rows, (0, []))
    absent = [name for name in columns if name not in header]
    if absent:
        raise UsageError(
            f"{path} has no column {' and no column '.join(absent)}; its first line is {shown(header)}",
            fix="Add or rename columns.",
        )
    repeated = [name for name in dict.fromkeys(header) if name and header.count(name) > 1]
    if repeated:
        raise UsageError(f"{path} has several columns {shown(repeated)}", needed="one", fix="Rename the others.")
    return ((number, dict(zip(header, row))) for number, row in rows if row)
