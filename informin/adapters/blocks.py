"""Blocks of embedding rows that one process reads and works on."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from informin.distributed import rank, world_size
from informin.neighbors import ROWS_AT_ONCE
from informin.rows import raise_if_not_finite, rows_of


def local_blocks(rows: int) -> Iterator[slice]:
    """Yield the blocks of rows that this process handles."""
    for number, start in enumerate(range(0, rows, ROWS_AT_ONCE)):
        if number % world_size() == rank():
            yield slice(start, start + ROWS_AT_ONCE)


def finite_rows(x: np.ndarray, rows: slice) -> Tensor:
    """Return consecutive rows of an array or memory map as float64.

    Raises:
        UsageError: They contain NaN or infinity.
    """
    chunk = rows_of(x, rows)
    raise_if_not_finite(chunk, rows.start or 0)
    return torch.from_numpy(chunk.astype(np.float64, copy=False))
