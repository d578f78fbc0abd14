"""BERT-whitening, the post-processing that needs no training: a baseline for every checkpoint."""

from collections.abc import Sequence

import numpy as np

from informin.evaluation.embedding_cache import Encode


class Whitening:
    """Moves embeddings to mean 0 and unit covariance, and keeps the directions of the largest variance.

    Args:
        x: (N, d), the embeddings it is fitted on.
        dimensions: how many directions are kept; None for all d.

    Source:
        Su et al. (2021), "Whitening sentence representations for better semantics and faster retrieval", algorithm 1.
    """

    def __init__(self, x: np.ndarray, dimensions: int | None = None):
        x = np.asarray(x, dtype=np.float64)
        self.mean = x.mean(0)
        if not np.isfinite(x).all():  # no directions; every embedding becomes NaN, which no score takes
            self.kernel = np.full((x.shape[1], dimensions or x.shape[1]), np.nan)
            return
        centered = x - self.mean
        directions, variances, _ = np.linalg.svd(centered.T @ centered / len(x))
        kept = variances > 1e-10 * variances[0]  # directions without variance would be noise blown up
        self.kernel = (directions[:, kept] / np.sqrt(variances[kept]))[:, :dimensions]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """(N, d) to (N, dimensions), float32."""
        return ((x - self.mean) @ self.kernel).astype(np.float32)


def whitened(encode: Encode, dimensions: int | None, fitted_on: Sequence[str] | None = None) -> Encode:
    """An encode() whose embeddings are whitened.

    Args:
        fitted_on: the sentences that the whitening is fitted on, once; None for those of each call, which for a task
            are its own sentences ("target" in Su et al., 2021; no label is seen).
    """
    transform = None if fitted_on is None else Whitening(encode(fitted_on), dimensions)

    def encode_whitened(sentences: Sequence[str]) -> np.ndarray:
        x = encode(sentences)
        return (transform or Whitening(x, dimensions))(x)

    return encode_whitened
