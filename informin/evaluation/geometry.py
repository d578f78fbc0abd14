"""What embeddings look like: alignment and uniformity (Wang & Isola, ICML 2020), neighbors, hubs, directions.

Takes arrays, knows no model.
"""

import numpy as np
from scipy.linalg import orthogonal_procrustes
from scipy.spatial.distance import pdist
from scipy.stats import skew

BLOCK = 2**24  # cosines at a time: 64 MiB


def unit(x: np.ndarray) -> np.ndarray:
    """(N, d) with every row scaled to length 1, in float64; a row of zeros stays as it is."""
    x = np.asarray(x, dtype=np.float64)
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    return x / np.where(length == 0, 1, length)


def alignment(x: np.ndarray, y: np.ndarray) -> float:
    """Mean squared distance between the unit vectors of positive pairs; lower is better.

    Args:
        x, y: (N, d), the two sides of N positive pairs.

    Source:
        Wang & Isola (2020), with alpha = 2; Gao et al. (2021), eq. 2.
    """
    return float(((unit(x) - unit(y)) ** 2).sum(-1).mean())


def uniformity(x: np.ndarray) -> float:
    """log mean exp(-2 |x - y|^2) over all pairs of different rows, on unit vectors; lower is better.

    Args:
        x: (N, d), embeddings of N distinct sentences. Takes O(N^2) memory: 3,000 rows need 36 MB.

    Source:
        Wang & Isola (2020), with t = 2; Gao et al. (2021), eq. 3.
    """
    return float(np.log(np.exp(-2 * pdist(unit(x), "sqeuclidean")).mean()))


def nearest(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices (N, k) and cosines (N, k) of the k nearest other rows of each row, nearest first.

    Compares every pair, in blocks, by cosines rounded to 6 decimals. Ties are broken by index, so that the result does
    not depend on the hardware.

    Args:
        x: (N, d) float32 or float64 unit vectors.
    """
    index, cosines = np.empty((len(x), k), dtype=np.int64), np.empty((len(x), k), dtype=np.float32)
    step = max(1, BLOCK // len(x))
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
    """(N,): how often each row is among the k nearest of another; k on average.

    Args:
        neighbors: (N, k), from `nearest`.
    """
    return np.bincount(neighbors.ravel(), minlength=len(neighbors))


def hubness(neighbors: np.ndarray) -> float:
    """Skewness of how often rows are neighbors of others: 0 without hubs, high where a few are near to very many.

    Args:
        neighbors: (N, k), from `nearest`.

    Source:
        Radovanovic, Nanopoulos & Ivanovic (JMLR 2010), eq. 1.
    """
    counts = occurrences(neighbors)
    return float(skew(counts)) if np.ptp(counts) else 0.0  # equal counts have no skewness by the formula


def effective_rank(x: np.ndarray) -> float:
    """In how many directions the embeddings spread around their mean: 1 to d, exp of the entropy of the spread.

    Args:
        x: (N, d); rows are scaled to length 1.

    Source:
        Roy & Vetterli (EUSIPCO 2007), of the singular values, centered here: most encoders' embeddings share a
        direction that says nothing of the sentence.
    """
    rows = unit(x)
    values = np.linalg.svd(rows - rows.mean(0), compute_uv=False)
    share = values[values > 0] / values.sum() if values.any() else np.ones(1)
    return float(np.exp(-(share * np.log(share)).sum()))


def rotated_cosine(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(N,): the cosine of each row of x with its row of y after the rotation (or reflection) that brings x nearest.

    Unit vectors less their mean: a direction that all embeddings share would make every cosine high. The rotation is
    fitted on these very rows, so that unrelated embeddings have some 0.85 sqrt(d / N) too, where that is small.

    Args:
        x, y: (N, d) and (N, e); the narrower one is filled up with zeros.

    Source:
        Orthogonal Procrustes, Schoenemann (1966).
    """
    wide = max(x.shape[1], y.shape[1])
    x, y = (np.pad(unit(z) - unit(z).mean(0), ((0, 0), (0, wide - z.shape[1]))) for z in (x, y))
    rotation, _ = orthogonal_procrustes(x, y)  # (wide, wide)
    return (unit(x @ rotation) * unit(y)).sum(-1)
