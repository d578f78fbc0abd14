"""Rows of embeddings: unit length, the highest scores, and arrays that are read in parts."""

import numpy as np

from informin.errors import UsageError

CHUNK = 65_536  # rows read at once from a memory map


def unit_rows(x: np.ndarray) -> np.ndarray:
    """Return rows (N, d) scaled to unit length. Rows of zeros stay zero."""
    limits = np.finfo(x.dtype)
    with np.errstate(over="ignore", under="ignore"):
        length = np.linalg.norm(x, axis=-1, keepdims=True)
    extreme = (length < limits.tiny**0.5 / limits.eps) | np.isinf(length)  # squares underflow or overflow
    if extreme.any():
        largest = np.abs(x).max(-1, keepdims=True)
        x = x / np.where(extreme & (largest > 0), largest, 1)
        length = np.linalg.norm(x, axis=-1, keepdims=True)
    return x / np.where(length > 0, length, 1)


def top(scores: np.ndarray, k: int) -> np.ndarray:
    """Return the indices of the k highest scores of (N,), highest first, ties by index; -1 in place of -infinity."""
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    candidates = np.flatnonzero(scores >= least)
    highest = candidates[np.argsort(-scores[candidates], kind="stable")][:k]
    return np.where(np.isneginf(scores[highest]), -1, highest)


def native(x: np.ndarray) -> np.ndarray:
    """Return an array in the byte order of this machine, as it is if it has it. Its type is kept."""
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def rows_of(x: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
    """Return a copy of some rows of an array or memory map."""
    return np.array(x[rows])


def raise_if_not_finite(chunk: np.ndarray, start: int = 0, name: str = "Input X") -> None:
    """Raise UsageError if rows contain NaN or infinity.

    Args:
        chunk: (n, d) rows.
        start: Number of the first row.
        name: Name of the whole array in the message.
    """
    finite = np.isfinite(chunk)
    if not finite.all():
        bad = start + int(np.flatnonzero(~finite.all(-1))[0])
        raise UsageError(f"{name} contains NaN or infinity (first in row {bad})", fix="Remove or recompute this row.")
