"""What embeddings look like: alignment and uniformity (Wang & Isola, ICML 2020). Takes arrays, knows no model."""

import numpy as np
from scipy.spatial.distance import pdist


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
