"""Row numbers that `Index` gets, in whatever form."""

from collections.abc import Iterable, Sequence

import numpy as np

from informin.errors import UsageError, counted

NEEDED_ROWS = "row numbers, or a mask with one boolean for each text"


def places_to_remove(chosen: int | Iterable[int], rows: np.ndarray) -> np.ndarray:
    """Return whether each text is removed (N,).

    Args:
        chosen: A row number, any iterable of row numbers, or a mask of N booleans.
        rows: (N,) row numbers of the texts.

    Raises:
        UsageError: It is neither, or a row does not exist.
    """
    items = list(chosen) if isinstance(chosen, Iterable) else [chosen]
    are_booleans = [np.asarray(item).dtype == bool for item in items]
    if items and all(are_booleans):
        if len(items) != len(rows):
            raise UsageError(f"has {counted(len(items), 'boolean')} for {counted(len(rows), 'text')}", option="rows")
        return np.array(items, bool)
    for item, is_boolean in zip(items, are_booleans):
        if is_boolean or np.ndim(item) or not np.issubdtype(np.asarray(item).dtype, np.integer):
            raise UsageError(f"contains {item!r:.60}", option="rows", needed=NEEDED_ROWS)
    numbers = [int(item) for item in items]
    removed = np.zeros(len(rows), bool)
    removed[places_of(numbers, rows)] = True
    return removed


def places_of(numbers: Sequence[int], rows: np.ndarray) -> np.ndarray:
    """Return the places (n,) of row numbers among the rows of an index (N,), which ascend.

    Raises:
        UsageError: A row does not exist.
    """
    wanted = np.asarray(numbers, int)
    missing = np.setdiff1d(wanted, rows)
    if len(missing):
        raise UsageError(f"contains {missing[0]}, which is not in the index", option="rows")
    return np.searchsorted(rows, wanted)
