"""Exact nearest neighbors by cosine."""

import torch
from torch import Tensor
from tqdm import tqdm

from informin.bars import hidden
from informin.errors import UsageError

PAIRS_AT_ONCE = 2**25  # cosines in memory at once: 128 MiB


def nearest_neighbors(embeddings: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k nearest other sentences of each sentence by cosine, nearest first.

    The search is exact: it compares every pair, in O(N^2 d) time and O(N d + PAIRS_AT_ONCE) memory.

    Args:
        embeddings: (N, d) float32 unit vectors.

    Returns:
        Indices (N, k) int64 and cosines (N, k) float32, both on the CPU.

    Raises:
        UsageError: There are fewer than k other sentences.
    """
    check_neighbors(k, len(embeddings))
    indices, cosines, rows = [], [], max(1, PAIRS_AT_ONCE // len(embeddings))
    for start in tqdm(range(0, len(embeddings), rows), desc="neighbors", leave=False, disable=hidden()):
        block = embeddings[start : start + rows] @ embeddings.T  # (rows, N)
        block[torch.arange(len(block)), torch.arange(start, start + len(block))] = -torch.inf  # the sentence itself
        values, nearest = block.topk(k, dim=-1)
        indices.append(nearest.cpu())
        cosines.append(values.cpu())
    return torch.cat(indices), torch.cat(cosines)


def check_neighbors(k: int, sentences: int, option: str | None = None) -> None:
    """Raise UsageError if no sentence has k others; `option` is the option that sets k."""
    if k >= sentences:
        needed = f"more sentences, or at most {sentences - 1} neighbors"
        raise UsageError(f"needs {k} neighbors for each of {sentences:,} sentences", option=option, needed=needed)
