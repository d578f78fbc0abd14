"""Exact nearest neighbors by cosine, and averages over them."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

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


def top(scores: np.ndarray, k: int) -> np.ndarray:
    """Return the indices of the k highest scores of (N,), highest first, ties by index; -1 in place of -infinity."""
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    candidates = np.flatnonzero(scores >= least)
    highest = candidates[np.argsort(-scores[candidates], kind="stable")][:k]
    return np.where(np.isneginf(scores[highest]), -1, highest)


WIDTH = 1e-4  # of a cell: far above the rounding of float32, far below the distance between different texts
PROJECTIONS = 16
GRIDS = 3


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
    first = np.arange(len(keys))
    kept = first
    for grid in keys.T:
        _, index, inverse = np.unique(grid[kept], return_index=True, return_inverse=True)
        earlier = np.arange(len(keys))
        earlier[kept] = kept[index][inverse]
        first = earlier[first]
        kept = np.sort(kept[index])
    return first


ROWS_AT_ONCE = 4_096  # rows per block. Fixed, so that the rounding does not depend on the number of processes.
MOST_COSINES = 2**27  # cosines in memory at once: 512 MiB
DECIMALS = 6  # of cosines whose ties are broken by index: the cosines of equal vectors differ in their last bits
SMOOTH_NEIGHBORS = 10  # of `smooth_rows`
SMOOTH_WEIGHT = 0.5  # of a row in its own average


def unit_tensor(x: Tensor) -> Tensor:
    """Return rows (N, d) on the CPU scaled to unit length: see `unit_rows`.

    Lengths are torch's, whose last bits differ from NumPy's, so that fitted maps stay bit-equal between versions.
    """
    length = x.norm(dim=-1, keepdim=True)
    limits = torch.finfo(x.dtype)
    if bool(((length < limits.tiny**0.5 / limits.eps) & (x != 0).any(-1, keepdim=True) | length.isinf()).any()):
        return torch.from_numpy(unit_rows(x.numpy()))  # squares of some row underflow or overflow
    return x / length.where(length > 0, 1.0)


def nonzero(x: Tensor) -> Tensor:
    """Return which rows (n,) are not zero."""
    return (x != 0).any(-1)


def nearest_rows(
    anchors: Tensor, candidates: Tensor, k: int, *, first: int | None = None, ties_by_index: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the k nearest candidates of each anchor by cosine, nearest first.

    The search is exact up to float32 rounding: it compares every pair, in blocks, on the accelerator if there is one.

    Args:
        anchors: (A, d) unit vectors.
        candidates: (C, d) unit vectors, with C > k.
        first: Index of the first anchor among the candidates, if the anchors are candidates themselves: an anchor is
            not its own neighbor.
        ties_by_index: Whether cosines are rounded to 6 decimals and ties are broken by index, so that scores do not
            depend on the hardware.

    Returns:
        Indices (A, k) int64 and cosines (A, k), on the CPU. The cosines are float32, or float64 computed again from
        rows in float64.
    """
    accelerator = torch.accelerator.current_accelerator() or torch.device("cpu")
    columns = candidates.to(accelerator, torch.float32).T
    step = max(1, min(ROWS_AT_ONCE, MOST_COSINES // len(candidates)))
    indices: list[Tensor] = []
    cosines: list[Tensor] = []
    for start in range(0, len(anchors), step):
        block = anchors[start : start + step].to(accelerator, torch.float32)
        similarity = block @ columns  # (step, C)
        if first is not None:
            rows = torch.arange(len(block), device=accelerator)
            similarity[rows, first + start + rows] = -torch.inf
        values, nearest = _highest_by_index(similarity, k) if ties_by_index else similarity.topk(k, dim=-1)
        indices.append(nearest.cpu())
        cosines.append(values.cpu())
    found = torch.cat(indices)
    if anchors.dtype == torch.float64 and not ties_by_index:
        return found, torch.stack([(anchors * candidates[column]).sum(-1) for column in found.T], dim=1)
    return found, torch.cat(cosines)


def nearest(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices (N, k) and cosines (N, k) of the k nearest other rows of each row, nearest first.

    Cosines are rounded to 6 decimals, and ties are broken by index.

    Args:
        x: (N, d) unit vectors.
    """
    rows = torch.from_numpy(x)
    indices, cosines = nearest_rows(rows, rows, k, first=0, ties_by_index=True)
    return indices.numpy(), cosines.numpy()


def _highest_by_index(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k highest values of each row, rounded to 6 decimals, and their columns. Changes its argument."""
    similarity.round_(decimals=DECIMALS)
    values: list[Tensor] = []
    columns: list[Tensor] = []
    for _ in range(k):
        highest = similarity.argmax(dim=1, keepdim=True)  # the first of equal values
        values.append(similarity.gather(1, highest))
        columns.append(highest)
        similarity.scatter_(1, highest, -torch.inf)
    return torch.cat(values, dim=1), torch.cat(columns, dim=1)


def neighbor_means(candidates: np.ndarray, indices: Tensor, cosines: Tensor) -> Tensor:
    """Return the mean (A, d) of each row's neighbors, weighted by their cosines cubed.

    Args:
        candidates: (C, d) rows, such as a memory map.
        indices, cosines: (A, k) from `nearest_rows`. The means have the dtype of the cosines.
    """
    weights = cosines.clamp(min=1e-6) ** 3
    weights = weights / weights.sum(-1, keepdim=True)
    means = torch.empty(len(indices), candidates.shape[1], dtype=cosines.dtype)
    for start in range(0, len(indices), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        neighbors = torch.from_numpy(candidates[indices[rows].numpy()]).to(cosines.dtype)  # (block, k, d)
        means[rows] = (weights[rows][..., None] * neighbors).sum(1)
    return means


def smooth_rows(vectors: np.ndarray, n_neighbors: int = SMOOTH_NEIGHBORS) -> np.ndarray:
    """Average each unit vector with its nearest neighbors, weighted by their cosines cubed, half and half.

    Copies count once. Rows of zeros stay zero, and are not neighbors.

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
    means = neighbor_means(x.numpy(), *nearest_rows(x, x, k, first=0))
    averages = unit_tensor(SMOOTH_WEIGHT * x + (1 - SMOOTH_WEIGHT) * means)
    smoothed[rows] = averages[place].numpy()
    return smoothed
