"""Encode functions: each distinct text once, or whitened, a post-processing baseline that needs no training."""

from collections.abc import Callable, Sequence

import numpy as np

from informin.errors import UndefinedScoreError, counted

Encode = Callable[[Sequence[str]], np.ndarray]  # from N texts to embeddings (N, d)


class EmbeddingCache:
    """An encode function that encodes each distinct text once over all calls, and keeps its embedding.

    Args:
        encode: Function from N texts to embeddings (N, d). Each call gets all new texts at once.
    """

    def __init__(self, encode: Encode):
        self._encode = encode
        self._row: dict[str, int] = {}
        self._embeddings: np.ndarray | None = None

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Return the embeddings (N, d) of N texts."""
        new = [text for text in dict.fromkeys(texts) if text not in self._row]
        if new or self._embeddings is None:
            x = self._encode(new)
            self._embeddings = x if self._embeddings is None else np.concatenate([self._embeddings, x])
            self._row |= {text: row for row, text in enumerate(new, start=len(self._row))}
        return self._embeddings[[self._row[text] for text in texts]]


def embed_once(encode: Encode, texts: Sequence[str]) -> Encode:
    """Encode the distinct texts in one call, and return a function that looks up the embeddings (M, d) of M of them.

    Raises:
        UndefinedScoreError: An embedding is not finite.
    """

    def finite(distinct: Sequence[str]) -> np.ndarray:
        x = encode(distinct)  # (distinct texts, d)
        if broken := int((~np.isfinite(x)).any(axis=1).sum()):
            raise UndefinedScoreError(f"the embeddings of {broken:,} of {len(distinct):,} sentences are not finite")
        return x

    cache = EmbeddingCache(finite)
    cache(texts)
    return cache


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
        found = f"{counted(len(x), 'sentence')} cannot be whitened to {counted(kept, 'dimension')}"
        raise UndefinedScoreError(f"{found}, because all cosines would be equal. Set a smaller `whitening`")
    return Whitening(x, dimensions)(x)
