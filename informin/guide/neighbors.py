"""Nearest neighbors by cosine, and which of them are mutual."""

import torch
from torch import Tensor
from tqdm import tqdm

from informin.bars import hidden
from informin.errors import UsageError, counted

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
    require_neighbors(k, len(embeddings))
    indices, cosines, rows = [], [], max(1, PAIRS_AT_ONCE // len(embeddings))
    for start in tqdm(range(0, len(embeddings), rows), desc="neighbors", leave=False, disable=hidden()):
        block = embeddings[start : start + rows] @ embeddings.T  # (rows, N)
        block[torch.arange(len(block)), torch.arange(start, start + len(block))] = -torch.inf  # the sentence itself
        values, found = block.topk(k, dim=-1)
        indices.append(found.cpu())
        cosines.append(values.cpu())
    return torch.cat(indices), torch.cat(cosines)


def mutual_neighbors(indices: Tensor) -> Tensor:
    """Keep the mutual neighbors: those that also have the sentence among their own k neighbors.

    A hub is a sentence close to many others. Few of them are among its own neighbors, so it has few mutual neighbors.

    Args:
        indices: (N, k) int64, the neighbors of N sentences, nearest first.

    Returns:
        (N, k) int64, with the index of the sentence itself in place of each neighbor that is not mutual.
    """
    itself = torch.arange(len(indices))[:, None]
    mutual = torch.stack([(indices[candidates] == itself).any(-1) for candidates in indices.T], dim=1)  # (N, k)
    return torch.where(mutual, indices, itself)


def nearest_mutual_neighbor(indices: Tensor) -> Tensor:
    """Return the nearest mutual neighbor (N,) of each sentence, or the sentence itself if it has none.

    Args:
        indices: (N, k) int64, the neighbors of N sentences, nearest first.
    """
    itself, mutual = torch.arange(len(indices)), mutual_neighbors(indices)
    return mutual[itself, (mutual != itself[:, None]).int().argmax(1)]


def require_neighbors(k: int, sentences: int, option: str | None = None) -> None:
    """Raise UsageError if no sentence has k others; `option` is the option that sets k."""
    if k >= sentences:
        raise UsageError(
            f"needs {counted(k, 'neighbor')} for each of {counted(sentences, 'different sentence')}",
            option=option,
            needed=f"at most {sentences - 1}",
            fix="Lower it, or add sentences.",
        )
