"""Reader for evaluation files (TSV, CSV or JSONL) by column name."""

import math
import reprlib
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from informin.errors import UsageError
from informin.jsonfiles import json_records
from informin.textfiles import (
    JSON,
    TABLES,
    as_text,
    is_blank,
    plain_suffix,
    refuse_surrogates,
    require_file,
    shown,
    table_rows,
)

LARGEST = 1e9  # absolute value of a number


def rows_by_column(
    path: Path, option: str, columns: Sequence[str], may_be_empty: Sequence[str] = ()
) -> Iterator[tuple[int, dict]]:
    """Yield the line number and the cells by column of each nonblank row, including columns not asked for.

    Args:
        option: Name of the option that names the file, without dashes.
        columns: Required columns.
        may_be_empty: Further required columns, whose cells can be empty.

    Raises:
        UsageError: The file does not exist or has another format, a column is missing, or a row has an empty cell in
            one of `columns`; or as `table_rows` and `json_records`.
    """
    require_file(f"`{option}`", path)
    for number, record in _records(path, option, [*columns, *may_be_empty]):
        missing = [name for name in columns if record.get(name) in (None, "")]
        missing += [name for name in may_be_empty if name not in record]
        if missing:
            columns_found = shown(name for name, cell in record.items() if cell is not None)
            raise UsageError(
                f"{path}, line {number}: no {' and no '.join(missing)} in the columns {columns_found}",
                needed=f"a value for {', '.join([*columns, *may_be_empty])} in every row",
            )
        for cell in (cell for cell in record.values() if isinstance(cell, str) and not cell.isascii()):
            refuse_surrogates(cell, f"{path}, line {number}")
        yield number, record


def is_empty(cell: object) -> bool:
    """Return whether a cell has no value: it is missing, null, empty or only whitespace."""
    return cell is None or (isinstance(cell, str) and is_blank(cell))


def text_in(record: dict, column: str, where: object, number: int | None = None) -> str:
    """Return a cell that contains text.

    Args:
        where: The file or row, for the message.
        number: Line of the file.

    Raises:
        UsageError: The cell is not a string, not valid Unicode, or longer than 100,000 characters.
    """
    if not isinstance(record[column], str):
        place = f"{where}, line {number}" if number else where
        raise UsageError(f"{place}: {column} is {reprlib.repr(record[column])}", needed="text")
    return as_text(record[column], where, number)


def sentence_in(record: dict, column: str, where: object, number: int) -> str:
    """Return a cell that contains text which is not blank; raises UsageError as `text_in`, and for blank text."""
    if is_blank(text := text_in(record, column, where, number)):
        raise UsageError(f"{where}, line {number}: the {column} is blank", needed="text in every row")
    return text


def as_number(cell: object, column: str, where: object, number: int | None = None) -> float:
    """Return a cell as a number from -10^9 to 10^9. Raises UsageError if it is not one."""
    try:
        plain = not isinstance(cell, bool) and not (isinstance(cell, str) and "_" in cell)  # float("1_0") is 10
        value = float(cell) if plain else math.nan  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not abs(value) <= LARGEST:  # NaN included
        place = f"{where}, line {number}" if number else where
        raise UsageError(f"{place}: the {column} is {reprlib.repr(cell)}", needed="a number between -10^9 and 10^9")
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
            fix=_header_fix(header, columns, len(absent) == len(columns)),
        )
    repeated = [name for name in dict.fromkeys(header) if name and header.count(name) > 1]
    if repeated:
        raise UsageError(f"{path} has several columns {shown(repeated)}", needed="one", fix="Rename the others.")
    # A cell that a short row lacks is None.
    return ((number, dict(zip_longest(header, row[: len(header)]))) for number, row in rows if row)


def _header_fix(header: Sequence[str], columns: Sequence[str], none_known: bool) -> str:
    """Return what to do about a first line that lacks columns, which may be a row of data."""
    cells = " ".join(header).split()
    if none_known and len(cells) == 4 and cells[1] in ("0", "Q0"):
        return (
            f"It looks like TREC's format without column names: write {', '.join(columns)} and score in the first "
            "line, remove the second column, and separate columns by tabs."
        )
    if none_known:
        return f"Name the columns in the first line: {', '.join(columns)}."
    return "Add or rename columns."
