"""Alignment and uniformity, for `evaluate` and for the rest of the library. Needs only numpy and scipy.

Source:
    Wang & Isola, ICML 2020.
"""

import numpy as np
from scipy.spatial.distance import cdist, pdist

ROWS = 4096  # whose distances to all others are in memory at once
SHORT = 1e-138  # length of a row whose squares underflow


def unit(x: np.ndarray) -> np.ndarray:
    """Return rows (N, d) scaled to unit length, in float64, whatever their length; rows of zeros are unchanged."""
    x = np.asarray(x, dtype=np.float64)
    with np.errstate(over="ignore", under="ignore"):
        length = np.linalg.norm(x, axis=-1, keepdims=True)
    extreme = ((length < SHORT) | np.isinf(length)) & (x != 0).any(-1, keepdims=True)
    if extreme.any():
        x = np.where(extreme, x / np.where(extreme, np.abs(x).max(-1, keepdims=True), 1), x)
        length = np.linalg.norm(x, axis=-1, keepdims=True)
    return x / np.where(length == 0, 1, length)


def alignment(x: np.ndarray, y: np.ndarray) -> float:
    """Return the mean squared distance between the unit vectors of positive pairs; lower is better.

    Args:
        x, y: The two sides (N, d) of N positive pairs.

    Source:
        Wang & Isola (2020), with alpha = 2; Gao et al. (2021), eq. 2.
    """
    return float(((unit(x) - unit(y)) ** 2).sum(-1).mean())


def uniformity(x: np.ndarray) -> float:
    """Return log mean exp(-2 |x - y|^2) over all pairs of rows, on unit vectors; lower is better.

    Args:
        x: Embeddings (N, d) of N distinct sentences.

    Source:
        Wang & Isola (2020), with t = 2; Gao et al. (2021), eq. 3.
    """
    x, total = unit(x), 0.0
    for start in range(0, len(x), ROWS):
        block, rest = x[start : start + ROWS], x[start + ROWS :]
        total += np.exp(-2 * pdist(block, "sqeuclidean")).sum()
        for later in range(0, len(rest), ROWS):
            total += np.exp(-2 * cdist(block, rest[later : later + ROWS], "sqeuclidean")).sum()
    return float(np.log(total / (len(x) * (len(x) - 1) / 2)))
