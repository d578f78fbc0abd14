"""Exact nearest neighbors by cosine, and averages over them."""

import numpy as np
import torch
from torch import Tensor

from informin.evaluation.rows import unit_rows

ROWS_AT_ONCE = 4_096  # rows per block. Fixed, so that the rounding does not depend on the number of processes.
MOST_COSINES = 2**27  # cosines in memory at once: 512 MiB
DECIMALS = 6  # of cosines whose ties are broken by index: the cosines of equal vectors differ in their last bits


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
    anchors: Tensor, candidates: Tensor, k: int, *, first: int, ties_by_index: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the k nearest other candidates of each anchor by cosine, nearest first.

    The search is exact up to float32 rounding: it compares every pair, in blocks, on the accelerator if there is one.

    Args:
        anchors: (A, d) unit vectors, which are also candidates.
        candidates: (C, d) unit vectors, with C > k.
        first: Index of the first anchor among the candidates. The others follow it.
        ties_by_index: Whether cosines are rounded to 6 decimals and ties are broken by index, so that scores do not
            depend on the hardware.

    Returns:
        Indices (A, k) int64 and cosines (A, k), on the CPU. The cosines are float32, or float64 computed again from
        rows in float64.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    columns = candidates.to(accelerator, torch.float32).T
    step = max(1, min(ROWS_AT_ONCE, MOST_COSINES // len(candidates)))
    indices: list[Tensor] = []
    cosines: list[Tensor] = []
    for start in range(0, len(anchors), step):
        block = anchors[start : start + step].to(accelerator, torch.float32)
        similarity = block @ columns  # (step, C)
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
