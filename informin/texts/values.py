"""Texts and cells in memory: what is a text, and what only looks like a list of texts."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from informin.errors import UsageError

HALF_A_SIGN = re.compile("[\ud800-\udfff]")  # of a surrogate pair that was cut, as JSON may hold: nothing can encode it


def is_blank(text: str | None) -> bool:
    """Return whether a text is missing, empty or only whitespace. Blank texts are neither trained on nor scored."""
    return not text or text.isspace()


def as_texts(texts: Iterable[str], option: str = "texts") -> list[str]:
    """Return the texts of a list, a NumPy array, a pandas Series or a column of a data set as a list.

    Raises:
        UsageError: It is a single string, a table, a set or not iterable, or an item is not a string.
    """
    if isinstance(texts, str | bytes):
        raise UsageError(f"is one text, {texts!r:.40}", option=option, needed="a list of texts")
    if not isinstance(texts, Iterable):
        raise UsageError(f"is {texts!r:.60}", option=option, needed="a list of texts")
    raise_if_table(texts, option)
    raise_if_set(texts, option)
    items = list(texts)
    for number, item in enumerate(items):
        if not isinstance(item, str):
            raise UsageError(f"contains {item!r:.60} in row {number:,}", option=option, needed="a list of texts")
    return [encodable(str(item)) for item in items]  # also those of NumPy


def joined_cells(
    names: Sequence[str], cells: Sequence[Any], place: Callable[[], str], option: str | None = None
) -> str:
    """Return the texts of some columns of a row, joined by a space. Missing and blank cells are left out.

    Args:
        names: Names of the columns.
        cells: Their cells.
        place: Returns where the row is, for the error.
        option: Name of the option that has the row, for the error.

    Raises:
        UsageError: A cell is not text.
    """
    for name, cell in zip(names, cells):
        if not isinstance(cell, str | None):
            found = f"{place()}: the column {name} contains {cell!r:.60}"
            raise UsageError(found, option=option, needed="text in every row")
    return " ".join(cell for cell in cells if not is_blank(cell))


def raise_if_table(given: Any, option: str) -> None:
    """Raise UsageError for a DataFrame or a dictionary of splits, which would give the names of columns or splits."""
    if isinstance(given, Mapping) or getattr(given, "ndim", 1) > 1:
        found = f"is a {type(given).__name__}"
        raise UsageError(found, option=option, needed="a list of texts", fix='Pass one column, such as table["text"].')


def raise_if_set(given: Any, option: str) -> None:
    """Raise UsageError for a set, whose order is another one in each process: rows could not be told apart."""
    if isinstance(given, set | frozenset):
        raise UsageError("is a set, which has no order", option=option, needed="a list", fix="Pass sorted(...) of it.")


def encodable(text: str) -> str:
    """Return a text with the replacement character in place of halves of surrogate pairs."""
    return text if text.isascii() else HALF_A_SIGN.sub("\ufffd", text)
