"""BERT-whitening, a post-processing baseline that needs no training."""

import numpy as np

from informin.errors import UndefinedScoreError
from informin.evaluation.embedding_cache import Encode


class Whitening:
    """Linear map to mean 0 and unit covariance that keeps the directions with the largest variance.

    Args:
        x: Embeddings (N, d) to fit on.
        dimensions: Number of directions to keep; None for all d.

    Source:
        Su et al. (2021), "Whitening sentence representations for better semantics and faster retrieval", algorithm 1.
    """

    def __init__(self, x: np.ndarray, dimensions: int | None = None):
        x = np.asarray(x, dtype=np.float64)
        self.mean = x.mean(0)
        if not np.isfinite(x).all():  # maps every embedding to NaN, which scores reject
            self.kernel = np.full((x.shape[1], dimensions or x.shape[1]), np.nan)
            return
        centered = x - self.mean
        directions, variances, _ = np.linalg.svd(centered.T @ centered / len(x))
        kept = variances > 1e-10 * variances[0]  # directions without variance would amplify noise
        self.kernel = (directions[:, kept] / np.sqrt(variances[kept]))[:, :dimensions]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Map embeddings (N, d) to (N, dimensions) float32."""
        return ((x - self.mean) @ self.kernel).astype(np.float32)


def whitened(encode: Encode, dimensions: int | None) -> Encode:
    """Return an encode function whose embeddings are whitened, fitted on the sentences of each call.

    For a task these are its own sentences ("target" in Su et al., 2021), without labels.

    Raises:
        UndefinedScoreError: By the function that is returned; see `whiten`.
    """
    return lambda sentences: whiten(encode(sentences), dimensions)


def whiten(x: np.ndarray, dimensions: int | None) -> np.ndarray:
    """Return embeddings (N, d) whitened with a map fitted on themselves.

    Args:
        dimensions: Number of directions to keep; None for all d.

    Raises:
        UndefinedScoreError: There are not more rows than directions, which makes all cosines equal.
    """
    kept = min(dimensions or x.shape[1], x.shape[1])
    if len(x) <= kept and np.isfinite(x).all():
        raise UndefinedScoreError(
            f"{len(x)} sentences cannot be whitened to {kept} dimensions, because all cosines would be equal. Set a "
            "smaller `whitening`"
        )
    return Whitening(x, dimensions)(x)
