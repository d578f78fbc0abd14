"""Neighborhood means: smoother embeddings, averaged over each sentence and its nearest neighbors."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

CHUNK = 8_192  # rows averaged at once
SELF_WEIGHT = 1 / 2  # weight of the sentence's own embedding in its mean


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
