"""Read texts, documents and rows from files."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from informin.errors import UsageError
from informin.texts.columns import check_columns, text_columns
from informin.texts.folders import TABLES, find_files, format_of
from informin.texts.formats import lines, open_table
from informin.texts.values import is_blank, joined_cells


def read_texts(
    paths: str | Path | Sequence[str | Path], text_column: str | None = None, *, keep_blank: bool = False
) -> Iterator[str]:
    """Yield the texts of files that are not blank: one per line of a .txt file, one per row of another file.

    Args:
        paths: Files, or folders of files; see `find_files`.
        text_column: Column of the texts, or several with commas between them, which are joined by a space. Default:
            `text`, `sentence`, or the only column.
        keep_blank: Whether to yield blank texts, too, so that a text's place is that of its line or row.

    Raises:
        UsageError: A file or column does not exist, a file cannot be parsed, or a value of the column is not text.
    """
    files = find_files(paths)
    if text_column and all(format_of(file) == ".txt" for file in files):
        raise UsageError(f"is {text_column}, but {files[0]} has no columns", option="text_column")
    texts = chain.from_iterable(_texts_of(file, text_column) for file in files)
    return texts if keep_blank else (text for text in texts if not is_blank(text))


def read_documents(
    paths: str | Path | Sequence[str | Path], text_column: str | None, columns: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the texts of files, blank ones included, each with its values of further columns.

    Args:
        paths, text_column: See `read_texts`.
        columns: Names of the further columns, each with the option that asks for it. An empty cell is None.

    Raises:
        UsageError: As `read_texts`, or a file has no columns.
    """
    for file in find_files(paths):
        if format_of(file) == ".txt":
            name, option = next(iter(columns.items()))
            found = f"is {name}, but {file} has no columns"
            raise UsageError(found, option=option, fix="Use .csv, .tsv, .jsonl, .parquet or .arrow.")
        header, read = open_table(file)
        for name, option in columns.items():
            check_columns(file, header, [name], option)
        names = text_columns(file, header, text_column)
        for number, row in read([*names, *columns]):
            text = joined_cells(names, row[: len(names)], partial(_place, file, number))
            values = (None if isinstance(cell, str) and is_blank(cell) else cell for cell in row[len(names) :])
            yield text, dict(zip(columns, values))


class Row(dict[str, Any]):
    """The cells of a row by column name.

    Attributes:
        place: The file and the line, for errors.
    """

    def __init__(self, cells: Iterable[tuple[str, Any]], place: str):
        super().__init__(cells)
        self.place = place


def read_rows(
    path: str | Path, columns: Sequence[str], option: str, optional: Sequence[str] = (), fix: str | None = None
) -> Iterator[Row]:
    """Yield the rows of a CSV, TSV or JSONL file by column name. The first line of a CSV or TSV file has the names.

    Args:
        path: The file.
        columns: Columns that the file must have. A row has all columns of the file.
        option: Name of the option that names the file, for errors.
        optional: Columns that the file may lack. Their value is then None in every row.
        fix: How to choose other columns, for errors.

    Returns:
        Texts, or also other values from JSONL; None for an empty or blank cell.

    Raises:
        UsageError: The file or a column does not exist, the file cannot be parsed, or a row has too many fields.
    """
    path = Path(os.path.expanduser(path))
    if not path.is_file():
        raise UsageError(f"{path} does not exist", option=option)
    if format_of(path) not in TABLES:
        raise UsageError(f"{path} has an unsupported suffix", option=option, needed=", ".join(TABLES))
    header, read = open_table(path)
    present = [name for name in optional if name in header]
    check_columns(path, header, [*columns, *present], option, fix)
    names = list(dict.fromkeys([*header, *optional]))
    for number, row in read(names):
        cells = (None if isinstance(cell, str) and is_blank(cell) else cell for cell in row)
        yield Row(zip(names, cells), _place(path, number))


def as_sentence(row: Row, column: str) -> str:
    """Return a cell that contains text. Raises UsageError if it does not."""
    cell = row[column]
    if not isinstance(cell, str):
        raise UsageError(f"{row.place}: the column {column} contains {cell!r:.60}", needed="text in every row")
    return cell


def as_number(row: Row, column: str) -> float:
    """Return a cell as a finite number. Raises UsageError if it is not one."""
    cell = row[column]
    try:
        value = float(cell)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{row.place}: the column {column} contains {cell!r:.60}", needed="a number in every row")
    return value


def _texts_of(path: Path, text_column: str | None) -> Iterator[str]:
    if format_of(path) == ".txt":
        return (line.rstrip("\r\n") for line in lines(path))
    header, read = open_table(path)
    names = text_columns(path, header, text_column) if header else []
    return (joined_cells(names, row, partial(_place, path, number)) for number, row in read(names))


def _place(path: Path, number: int) -> str:
    """Return a file, and the number of a line, from 1; or of a row of a .parquet or .arrow file, from 0."""
    return f"{path}, {'line' if format_of(path) in TABLES else 'row'} {number}"
