"""Exact nearest neighbors by cosine, and neighborhood means: embeddings averaged over a sentence and its neighbors."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize
from tqdm import tqdm

from informin.errors import UsageError
from informin.program import hidden

PAIRS_AT_ONCE = 2**25  # cosines in memory at once: 128 MiB
CHUNK = 8_192  # rows averaged at once
SELF_WEIGHT = 1 / 2  # weight of the sentence's own embedding in its mean


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


def smooth(embeddings: np.ndarray, indices: Tensor, cosines: Tensor, into: np.ndarray) -> None:
    """Average each embedding with those of its neighbors, twice, and write the unit vectors into an array.

    The sentence itself keeps half of the weight. Its neighbors share the other half in proportion to their cosines
    cubed. Half is fixed because the cosines of a narrow domain are all high: neighbors would otherwise outweigh the
    sentence. The second pass averages the first means over the same neighbors.

    Args:
        embeddings: (N, d) unit vectors.
        indices, cosines: (N, k), the neighbors of each sentence.
        into: (N, d).

    Source:
        Two steps of Zhou et al. (2003), "Learning with local and global consistency", with the weights of alpha query
        expansion (Radenović, Tolias & Chum, 2019), alpha = 3.
    """
    weights = cosines.clamp(min=1e-6) ** 3  # (N, k)
    weights = weights / weights.sum(-1, keepdim=True)
    first = np.empty_like(into)
    _average(embeddings, indices, weights, into=first)
    _average(first, indices, weights, into=into)


def _average(x: np.ndarray, indices: Tensor, weights: Tensor, into: np.ndarray) -> None:
    for start in range(0, len(x), CHUNK):
        rows = slice(start, start + CHUNK)
        itself, others = (torch.from_numpy(part).float() for part in (np.array(x[rows]), x[indices[rows].numpy()]))
        neighbors = (weights[rows][..., None] * others).sum(1)  # (CHUNK, d)
        into[rows] = normalize(SELF_WEIGHT * itself + (1 - SELF_WEIGHT) * neighbors, dim=-1).numpy()
