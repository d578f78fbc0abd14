"""Blocks of embedding rows: unit length, sums over processes, and exact nearest neighbors."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from informin.distributed import rank, world_size
from informin.errors import UsageError

BLOCK = 4_096  # rows per block. Fixed, so that the rounding does not depend on the number of processes.
CHUNK = 65_536  # rows read at once from a memory map
COSINES = 2**27  # cosines in memory at once: 512 MiB


def unit_rows(x: Tensor) -> Tensor:
    """Return rows (N, d) scaled to unit length. Rows of zeros stay zero."""
    length = x.norm(dim=-1, keepdim=True)
    return x / length.where(length > 0, 1.0)


def own_blocks(rows: int) -> Iterator[slice]:
    """Yield the blocks of rows that this process handles."""
    for number, start in enumerate(range(0, rows, BLOCK)):
        if number % world_size() == rank():
            yield slice(start, start + BLOCK)


def finite_chunk(x: np.ndarray, rows: slice) -> Tensor:
    """Return a chunk of an array or memory map as float64.

    Raises:
        UsageError: It contains NaN or infinity.
    """
    chunk = torch.from_numpy(np.array(x[rows], dtype=np.float64))
    if not chunk.isfinite().all():
        bad = int((~chunk.isfinite().all(-1)).nonzero()[0]) + (rows.start or 0)
        raise UsageError(f"Input X contains NaN or infinity (first in row {bad})", fix="Remove or recompute this row.")
    return chunk


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
    step = max(1, min(BLOCK, COSINES // len(candidates)))
    indices = []
    for start in range(0, len(anchors), step):
        block = anchors[start : start + step].to(accelerator, torch.float32)
        similarity = block @ columns  # (step, C)
        if first is not None:
            rows = torch.arange(len(block), device=accelerator)
            similarity[rows, first + start + rows] = -torch.inf
        indices.append(similarity.topk(k, dim=-1).indices.cpu())
    found = torch.cat(indices)
    return found, torch.stack([(anchors * candidates[column]).sum(-1) for column in found.T], dim=1)


def neighbor_means(candidates: Tensor, indices: Tensor, cosines: Tensor) -> Tensor:
    """Return the mean (A, d) of each anchor's neighbors, weighted by their cosines cubed."""
    weights = cosines.clamp(min=1e-6) ** 3
    weights = weights / weights.sum(-1, keepdim=True)
    means = torch.zeros(len(indices), candidates.shape[-1], dtype=candidates.dtype)
    for weight, index in zip(weights.T, indices.T):
        means += weight[:, None] * candidates[index]
    return means
