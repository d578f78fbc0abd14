"""Blocks of embedding rows: reading, unit length, copies, exact nearest neighbors, and smoothing."""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from informin.distributed import rank, world_size
from informin.errors import UsageError

WIDTH = 1e-4  # of a cell: far above the rounding of float32, far below the distance between different texts
PROJECTIONS, GRIDS = 16, 3
ROWS_AT_ONCE = 4_096  # rows per block. Fixed, so that the rounding does not depend on the number of processes.
CHUNK = 65_536  # rows read at once from a memory map
MOST_COSINES = 2**27  # cosines in memory at once: 512 MiB
SMOOTH_NEIGHBORS, SMOOTH_WEIGHT = 10, 0.5  # of `smooth_rows`: neighbors, and the weight of a row in its own average


def copy_keys(x: Tensor) -> Tensor:
    """Return keys (n, 3) int64 of unit rows (n, d) float64. Copies share at least one of the three; zero rows have 0.

    A key is the hash of the cell of a grid that contains 16 random projections of the row. Rounding can push a copy
    over the border of a cell. The three grids are shifted against each other, so that one of them has both in one cell.
    """
    directions, factors = _draws(x.shape[1])
    places = (x @ directions / WIDTH).numpy()  # (n, 16)
    cells = [np.floor(places + grid / GRIDS).astype(np.int64) @ factors for grid in range(GRIDS)]
    return torch.from_numpy(np.stack(cells, axis=1))


@lru_cache(maxsize=4)
def _draws(width: int) -> tuple[Tensor, np.ndarray]:
    """Return directions (d, 16), and the factors (16,) of the hash, which wraps around at 64 bits."""
    source = np.random.default_rng(0)
    directions = torch.from_numpy(source.normal(size=(width, PROJECTIONS)))
    return directions, source.integers(-(2**63), 2**63, PROJECTIONS) | 1


def distinct_rows(keys: np.ndarray) -> np.ndarray:
    """Return the indices, in order, of rows without the copies of earlier rows.

    Args:
        keys: (n, 3) from `copy_keys`.
    """
    return np.unique(first_copies(keys))


def first_copies(keys: np.ndarray) -> np.ndarray:
    """Return for each row the index (n,) of the first row that it is a copy of, its own index if it is the first.

    Args:
        keys: (n, 3) from `copy_keys`.
    """
    kept = first = np.arange(len(keys))
    for grid in keys.T:
        _, index, inverse = np.unique(grid[kept], return_index=True, return_inverse=True)
        earlier = np.arange(len(keys))
        earlier[kept] = kept[index][inverse]
        first, kept = earlier[first], np.sort(kept[index])
    return first


def unit_rows(x: Tensor) -> Tensor:
    """Return rows (N, d) scaled to unit length, whatever their length. Rows of zeros stay zero."""
    length = x.norm(dim=-1, keepdim=True)
    limits = torch.finfo(x.dtype)
    extreme = (length < limits.tiny**0.5 / limits.eps) | length.isinf()  # squares underflow or overflow
    if extreme.any():
        largest = x.abs().amax(-1, keepdim=True)
        x = torch.where(extreme & (largest > 0), x / largest, x)
        length = x.norm(dim=-1, keepdim=True)
    return x / length.where(length > 0, 1.0)


def nonzero(x: Tensor) -> Tensor:
    """Return which rows (n,) are not zero."""
    return (x != 0).any(-1)


def local_blocks(rows: int) -> Iterator[slice]:
    """Yield the blocks of rows that this process handles."""
    for number, start in enumerate(range(0, rows, ROWS_AT_ONCE)):
        if number % world_size() == rank():
            yield slice(start, start + ROWS_AT_ONCE)


def read_rows(x: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
    """Return a copy of some rows of an array or memory map."""
    return np.array(x[rows])


def finite_rows(x: np.ndarray, rows: slice) -> Tensor:
    """Return consecutive rows of an array or memory map as float64.

    Raises:
        UsageError: They contain NaN or infinity.
    """
    chunk = read_rows(x, rows)
    raise_if_not_finite(chunk, rows.start or 0)
    return torch.from_numpy(chunk.astype(np.float64, copy=False))


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


def nearest_rows(anchors: Tensor, candidates: Tensor, k: int, *, first: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the k nearest candidates of each anchor by cosine, nearest first.

    The search is exact up to float32 rounding: it compares every pair, in blocks, on the accelerator if there is one.
    The cosines are then computed in the precision of the rows.

    Args:
        anchors: (A, d) unit vectors.
        candidates: (C, d) unit vectors, with C > k.
        first: Index of the first anchor among the candidates, if the anchors are candidates themselves: an anchor is
            not its own neighbor.

    Returns:
        Indices (A, k) int64 and cosines (A, k) in the dtype of the rows, on the CPU.
    """
    accelerator = torch.accelerator.current_accelerator() or torch.device("cpu")
    columns = candidates.to(accelerator, torch.float32).T.contiguous()
    step = max(1, min(ROWS_AT_ONCE, MOST_COSINES // len(candidates)))
    parts = []
    for start in range(0, len(anchors), step):
        block = anchors[start : start + step].to(accelerator, torch.float32)
        similarity = block @ columns  # (step, C)
        if first is not None:
            rows = torch.arange(len(block), device=accelerator)
            similarity[rows, first + start + rows] = -torch.inf
        parts.append(similarity.topk(k, dim=-1).indices.cpu())
    indices = torch.cat(parts)
    return indices, torch.stack([(anchors * candidates[column]).sum(-1) for column in indices.T], dim=1)


def neighbor_means(candidates: Tensor, indices: Tensor, cosines: Tensor) -> Tensor:
    """Return the mean (A, d) of each anchor's neighbors, weighted by their cosines cubed."""
    weights = cosines.clamp(min=1e-6) ** 3
    weights = weights / weights.sum(-1, keepdim=True)
    means = torch.zeros(len(indices), candidates.shape[-1], dtype=candidates.dtype)
    for weight, index in zip(weights.T, indices.T):
        means += weight[:, None] * candidates[index]
    return means


def smooth_rows(vectors: np.ndarray, n_neighbors: int = SMOOTH_NEIGHBORS) -> np.ndarray:
    """Average each unit vector with its nearest neighbors, weighted by their cosines cubed, half and half.

    Copies count once. Rows of zeros stay zero, and are no neighbors.

    Args:
        vectors: (n, d) unit vectors of documents, after the adapter if there is one.
        n_neighbors: Number of neighbors of each row. Fewer if there are fewer rows.

    Returns:
        (n, d) unit vectors in the dtype of `vectors`.
    """
    x = torch.from_numpy(np.asarray(vectors, np.float64))
    rows = np.flatnonzero(nonzero(x))
    x = x[rows]
    distinct, place = np.unique(first_copies(copy_keys(x).numpy()), return_inverse=True)
    x = x[distinct]
    k = min(n_neighbors, len(x) - 1)
    smoothed = np.array(vectors)
    if k < 1:
        return smoothed
    means = neighbor_means(x, *nearest_rows(x, x, k, first=0))
    smoothed[rows] = unit_rows(SMOOTH_WEIGHT * x + (1 - SMOOTH_WEIGHT) * means)[place].numpy()
    return smoothed
