"""Nearest neighbors of sentences, and their embeddings averaged over a sentence and its neighbors."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize
from tqdm import tqdm

from informin.errors import UsageError
from informin.neighbors import ROWS_AT_ONCE, nearest_rows, neighbor_means
from informin.program import hidden

AVERAGED_AT_ONCE = 8_192  # rows averaged at once
SELF_WEIGHT = 1 / 2  # weight of the sentence's own embedding in its mean


def nearest_neighbors(embeddings: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k nearest other sentences of each sentence by cosine, nearest first.

    Args:
        embeddings: (N, d) float32 unit vectors.

    Returns:
        Indices (N, k) int64 and cosines (N, k) float32, both on the CPU.

    Raises:
        UsageError: There are fewer than k other sentences.
    """
    check_neighbors(k, len(embeddings))
    indices: list[Tensor] = []
    cosines: list[Tensor] = []
    for start in tqdm(range(0, len(embeddings), ROWS_AT_ONCE), desc="neighbors", leave=False, disable=hidden()):
        nearest, values = nearest_rows(embeddings[start : start + ROWS_AT_ONCE], embeddings, k, first=start)
        indices.append(nearest)
        cosines.append(values)
    return torch.cat(indices), torch.cat(cosines)


def check_neighbors(k: int, sentences: int, option: str | None = None) -> None:
    """Raise UsageError if no sentence has k others; `option` is the option that sets k."""
    if k >= sentences:
        needed = f"more sentences, or at most {sentences - 1} neighbors"
        raise UsageError(f"needs {k} neighbors for each of {sentences:,} sentences", option=option, needed=needed)


def smooth(embeddings: np.ndarray, indices: Tensor, cosines: Tensor) -> Iterator[np.ndarray]:
    """Average each embedding with those of its neighbors, twice, and yield the unit vectors in blocks of rows.

    The sentence itself keeps half of the weight. Its neighbors share the other half in proportion to their cosines
    cubed. Half is fixed because the cosines of a narrow domain are all high: neighbors would otherwise outweigh the
    sentence. The second pass averages the first means over the same neighbors.

    Args:
        embeddings: (N, d) unit vectors.
        indices, cosines: (N, k), the neighbors of each sentence.

    Source:
        Two steps of Zhou et al. (2003), "Learning with local and global consistency", with the weights of alpha query
        expansion (Radenović, Tolias & Chum, 2019), alpha = 3.
    """
    first = np.empty_like(embeddings)
    done = 0
    for block in _averages(embeddings, indices, cosines):
        first[done : done + len(block)] = block
        done += len(block)
    yield from _averages(first, indices, cosines)


def _averages(x: np.ndarray, indices: Tensor, cosines: Tensor) -> Iterator[np.ndarray]:
    for start in range(0, len(x), AVERAGED_AT_ONCE):
        rows = slice(start, start + AVERAGED_AT_ONCE)
        itself = torch.from_numpy(np.array(x[rows])).float()
        means = neighbor_means(x, indices[rows], cosines[rows])
        yield normalize(SELF_WEIGHT * itself + (1 - SELF_WEIGHT) * means, dim=-1).numpy()
