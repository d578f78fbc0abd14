"""Duplicates among embeddings: rows that are equal up to rounding."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

WIDTH = 1e-4  # of a cell: far above the rounding of float32, far below the distance between different texts
PROJECTIONS = 16
GRIDS = 3


def duplicate_keys(x: Tensor) -> Tensor:
    """Return keys (n, 3) int64 of unit rows (n, d) float64. Duplicates have one or more in common; zero rows have 0.

    A key is the hash of the cell of a grid that contains 16 random projections of the row. Rounding can push a
    duplicate over the border of a cell. The three grids are shifted against each other, so that one of them has both in
    one cell.
    """
    directions, factors = _draws(x.shape[1])
    scaled = (x @ directions / WIDTH).numpy()  # (n, 16)
    cells = [np.floor(scaled + grid / GRIDS).astype(np.int64) @ factors for grid in range(GRIDS)]
    return torch.from_numpy(np.stack(cells, axis=1))


def distinct_rows(keys: np.ndarray) -> np.ndarray:
    """Return the indices, in order, of rows without the duplicates of earlier rows.

    Args:
        keys: (n, 3) from `duplicate_keys`.
    """
    return np.unique(first_duplicates(keys))


def first_duplicates(keys: np.ndarray) -> np.ndarray:
    """Return for each row the index (n,) of the first row that it is a duplicate of, its own index if it is the first.

    Args:
        keys: (n, 3) from `duplicate_keys`.
    """
    first = np.arange(len(keys))
    kept = first
    for grid in keys.T:
        _, index, inverse = np.unique(grid[kept], return_index=True, return_inverse=True)
        earlier = np.arange(len(keys))
        earlier[kept] = kept[index][inverse]
        first = earlier[first]
        kept = np.sort(kept[index])
    return first


@lru_cache(maxsize=4)
def _draws(width: int) -> tuple[Tensor, np.ndarray]:
    """Return directions (d, 16), and the factors (16,) of the hash, which wraps around at 64 bits."""
    source = np.random.default_rng(0)
    directions = torch.from_numpy(source.normal(size=(width, PROJECTIONS)))
    return directions, source.integers(-(2**63), 2**63, PROJECTIONS) | 1
