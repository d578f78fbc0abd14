"""Geometry of embeddings: alignment and uniformity (Wang & Isola, ICML 2020), nearest neighbors, hubness, rank.

All functions take arrays.
"""

import numpy as np
from scipy.linalg import orthogonal_procrustes
from scipy.stats import skew

from informin.evaluation.metrics.alignment_uniformity.formula import alignment, uniformity, unit

__all__ = ["alignment", "effective_rank", "hubness", "nearest", "occurrences", "rotated_cosine", "uniformity", "unit"]

PAIRS_AT_ONCE = 2**24  # cosines at a time: 64 MiB


def nearest(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices (N, k) and cosines (N, k) of the k nearest other rows of each row, nearest first.

    Compares every pair, in blocks, by cosines rounded to 6 decimals. Ties are broken by index, so that the result does
    not depend on the hardware.

    Args:
        x: (N, d) float32 or float64 unit vectors.
    """
    index, cosines = np.empty((len(x), k), dtype=np.int64), np.empty((len(x), k), dtype=np.float32)
    step = max(1, PAIRS_AT_ONCE // len(x))
    for start in range(0, len(x), step):
        rows = np.arange(min(step, len(x) - start))
        block = (x[start : start + step] @ x.T).round(6)  # the cosines of equal vectors differ in their last bits
        block[rows, start + rows] = -np.inf  # the row itself
        for place in range(k):
            best = block.argmax(1)
            index[start + rows, place], cosines[start + rows, place] = best, block[rows, best]
            block[rows, best] = -np.inf
    return index, cosines


def occurrences(neighbors: np.ndarray) -> np.ndarray:
    """Return how often each row (N,) is among the k nearest neighbors of another; k on average.

    Args:
        neighbors: Indices (N, k), from `nearest`.
    """
    return np.bincount(neighbors.ravel(), minlength=len(neighbors))


def hubness(neighbors: np.ndarray) -> float:
    """Return the skewness of neighbor counts: 0 without hubs, high if a few rows are neighbors of very many.

    Args:
        neighbors: Indices (N, k), from `nearest`.

    Source:
        Radovanovic, Nanopoulos & Ivanovic (JMLR 2010), eq. 1.
    """
    counts = occurrences(neighbors)
    return float(skew(counts)) if np.ptp(counts) else 0.0  # the formula is undefined for equal counts


def effective_rank(x: np.ndarray) -> float:
    """Return the effective rank of centered embeddings, 1 to d: exp of the entropy of their singular values.

    Args:
        x: Embeddings (N, d); rows are scaled to unit length.

    Source:
        Roy & Vetterli (EUSIPCO 2007). Rows are centered here because the embeddings of most encoders share a direction
        that carries no information about the sentence.
    """
    rows = unit(x)
    values = np.linalg.svd(rows - rows.mean(0), compute_uv=False)
    p = values[values > 0] / values.sum() if values.any() else np.ones(1)
    return float(np.exp(-(p * np.log(p)).sum()))


def rotated_cosine(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the cosine (N,) of each row of x with its row of y, after the best rotation or reflection of x onto y.

    Uses unit vectors minus their mean, because a direction shared by all embeddings would make every cosine high. The
    rotation is fitted on the same rows, so unrelated embeddings have a cosine of about 0.85 sqrt(d / N), if that is
    small.

    Args:
        x, y: Embeddings (N, d) and (N, e); the narrower one is padded with zeros.

    Source:
        Orthogonal Procrustes, Schoenemann (1966).
    """
    wide = max(x.shape[1], y.shape[1])
    x, y = (np.pad(unit(z) - unit(z).mean(0), ((0, 0), (0, wide - z.shape[1]))) for z in (x, y))
    rotation, _ = orthogonal_procrustes(x, y)  # (wide, wide)
    return (unit(x @ rotation) * unit(y)).sum(-1)
