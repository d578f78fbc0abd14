"""Geometry of embeddings: alignment and uniformity (Wang & Isola, ICML 2020), hubness, rank.

All functions take arrays.
"""

import numpy as np
from scipy.linalg import orthogonal_procrustes
from scipy.stats import skew

from informin.rows import unit_rows

ROWS_AT_ONCE = 1024  # whose distances to all others are in memory at once


def unit(x: np.ndarray) -> np.ndarray:
    """Return rows (N, d) scaled to unit length, in float64. Rows of zeros stay zero."""
    return unit_rows(np.asarray(x, dtype=np.float64))


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
    x = unit(x)
    blocks = [x[start : start + ROWS_AT_ONCE] for start in range(0, len(x), ROWS_AT_ONCE)]
    total = 0.0
    for number, block in enumerate(blocks):
        near = _nearness(block, block)
        total += (near.sum() - np.trace(near)) / 2  # each pair once, and no row with itself
        for other in blocks[number + 1 :]:
            total += _nearness(block, other).sum()
    return float(np.log(total / (len(x) * (len(x) - 1) / 2)))


def _nearness(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return exp(-2 |x - y|^2), (N, M), for rows (N, d) and (M, d). A matrix product computes the distances."""
    squares = (x**2).sum(-1)[:, None] + (y**2).sum(-1)
    return np.exp(-2 * (squares - 2 * (x @ y.T)))


def occurrences(neighbors: np.ndarray) -> np.ndarray:
    """Return how often each row (N,) is among the k nearest neighbors of another; k on average.

    Args:
        neighbors: Indices (N, k), from `informin.neighbors.nearest`.
    """
    return np.bincount(neighbors.ravel(), minlength=len(neighbors))


def hubness(neighbors: np.ndarray) -> float:
    """Return the skewness of neighbor counts: 0 without hubs, high if a few rows are neighbors of very many.

    Args:
        neighbors: Indices (N, k), from `informin.neighbors.nearest`.

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
