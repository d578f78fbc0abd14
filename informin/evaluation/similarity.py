"""The similarity functions of sentence-transformers, which a model names in `similarity_fn_name`."""

import numpy as np
from scipy.spatial.distance import cdist

from informin.evaluation.geometry import unit

SIMILARITIES = (COSINE, DOT, EUCLIDEAN, MANHATTAN) = ("cosine", "dot", "euclidean", "manhattan")
METRICS = {EUCLIDEAN: "euclidean", MANHATTAN: "cityblock"}  # scipy's names
ROUNDING = 1e-6  # equal vectors from different batches differ in their last bits


def prepared(similarity: str, x: np.ndarray) -> np.ndarray:
    """Return embeddings (N, d) as float32, scaled to unit length for the cosine."""
    return (unit(x) if similarity == COSINE else np.asarray(x)).astype(np.float32)


def smallest_difference(similarity: str, queries: np.ndarray, documents: np.ndarray) -> float:
    """Return the difference up to which similarities are equal: 10^-6 for unit vectors, more for longer ones.

    Args:
        queries, documents: (Q, d) and (D, d), from `prepared`.
    """
    if similarity == COSINE:
        return ROUNDING
    lengths = [
        float(np.median(np.linalg.norm(x, 1 if similarity == MANHATTAN else 2, axis=1))) for x in (queries, documents)
    ]
    size = lengths[0] * lengths[1] if similarity == DOT else max(lengths)
    return ROUNDING * size if size > 0 else ROUNDING


def similarities(similarity: str, queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Return the similarities (Q, D); distances are negative.

    Args:
        queries, documents: (Q, d) and (D, d), from `prepared`.
    """
    if similarity in METRICS:
        return -cdist(queries, documents, METRICS[similarity])
    return queries @ documents.T


def pairwise(similarity: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the similarity (N,) of each row of x with the same row of y, both (N, d); the cosine with 0 is 0."""
    x, y = (unit(z) if similarity == COSINE else np.asarray(z, np.float64) for z in (x, y))
    if similarity in METRICS:
        return -np.linalg.norm(x - y, 1 if similarity == MANHATTAN else 2, axis=1)
    return (x * y).sum(-1)
