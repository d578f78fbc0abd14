"""Choose the columns of the texts in a table by the names of its columns."""

import re
from collections.abc import Iterable
from pathlib import Path

from informin.errors import UsageError
from informin.texts.folders import format_of
from informin.texts.formats import DIALECTS

TEXT_COLUMNS = ("text", "sentence")  # read by default, if a file has several columns
COLUMN_NAME = re.compile(r"[\w.:/-]+( [\w.:/-]+)?")  # up to two words; other first lines are texts
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}  # of CSV files that no reader of commas can read


def text_columns(path: Path, columns: list[str], text_column: str | None) -> list[str]:
    """Return the names of the columns to read."""
    named = [name for name in TEXT_COLUMNS if name in columns][:1]
    if text_column:
        named = [name.strip() for name in text_column.split(",")]
    elif not named and len(columns) == 1 and COLUMN_NAME.fullmatch(columns[0].strip()):
        named = columns
    if not named:
        fix = "Choose a column with `text_column`."
        if format_of(path) in DIALECTS:
            fix += " If the first line is a text, put the line `text` before it, or let the file's name end in .txt if "
            fix += "each line is a text."
        fix = _separator_fix(path, columns) or fix
        raise UsageError(f"{path} {_columns_in_words(columns)}", needed="a column text", fix=fix)
    check_columns(path, columns, named, "text_column")
    return named


def check_columns(path: Path, columns: list[str], needed: Iterable[str], option: str, fix: str | None = None) -> None:
    """Raise UsageError unless a file has each needed column once.

    Args:
        path: The file.
        columns: Names of its columns.
        needed: Names of the columns that it must have.
        option: Name of the option that asks for them.
        fix: How to choose other columns.
    """
    for name in needed:
        if columns.count(name) != 1:
            found = f"needs one column {name!r}, and {path} {_columns_in_words(columns)}"
            raise UsageError(found, option=option, fix=_separator_fix(path, columns) or fix)


def _separator_fix(path: Path, columns: list[str]) -> str | None:
    """Return what to do if the columns of a CSV file are separated by something else than commas."""
    if format_of(path) != ".csv" or len(columns) != 1:
        return None
    name = next((name for sign, name in SEPARATORS.items() if sign in columns[0]), None)
    return name and f"The columns seem to be separated by {name}. Save the file with commas between them."


def _columns_in_words(names: list[str]) -> str:
    listed = ", ".join(name if len(name) <= 40 else f"{name[:37]}..." for name in names[:20])
    return f"has the columns {listed}" if names else "is empty"
