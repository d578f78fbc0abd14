"""Cells of evaluation files."""

import math
from pathlib import Path

from informin.errors import UsageError

Cell = str | float | None


def as_sentence(cell: Cell, path: Path, column: str) -> str:
    """Return a cell that contains text. Raises UsageError if it does not."""
    if not isinstance(cell, str):
        raise UsageError(f"{path}: a cell of {column} is {cell!r}", needed="text in every row")
    return cell


def as_number(cell: Cell, path: Path, column: str) -> float:
    """Return a cell as a finite number. Raises UsageError if it is not one."""
    try:
        value = float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{path}: a cell of {column} is {cell!r}", needed="a number in every row")
    return value
