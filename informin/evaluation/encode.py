"""Encode functions that cache and whiten embeddings, and the geometry of embeddings.

Geometry: alignment and uniformity (Wang & Isola, ICML 2020), hubness, effective rank. All functions take arrays.
"""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.linalg import orthogonal_procrustes
from scipy.stats import skew

from informin.errors import UndefinedScoreError, counted
from informin.evaluation.rows import unit_rows

Encode = Callable[[Sequence[str]], np.ndarray]  # from N texts to embeddings (N, d)
ROWS_AT_ONCE = 1024  # whose distances to all others are in memory at once


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


def whitened(encode: Encode, dimensions: int | None) -> Encode:
    """Return an encode function whose embeddings are whitened, fitted on the sentences of each call; see `whiten`.

    For a task these are its own sentences ("target" in Su et al., 2021), without labels.
    """
    return lambda sentences: whiten(encode(sentences), dimensions)


def whiten(x: np.ndarray, dimensions: int | None) -> np.ndarray:
    """Map embeddings (N, d) to mean 0 and unit covariance (N, dimensions), float32. The map is fitted on themselves.

    Embeddings that are not finite become NaN, which scores reject.

    Args:
        x: Embeddings (N, d).
        dimensions: Number of directions to keep, those with the largest variance; None for all d.

    Raises:
        UndefinedScoreError: There are not more rows than directions, which makes all cosines equal, or all rows are
            equal.

    Source:
        Su et al. (2021), "Whitening sentence representations for better semantics and faster retrieval", algorithm 1.
    """
    kept = min(dimensions or x.shape[1], x.shape[1])
    if not np.isfinite(x).all():
        return np.full((len(x), kept), np.nan, np.float32)
    if len(x) <= kept:
        found = f"{counted(len(x), 'sentence')} cannot be whitened to {counted(kept, 'dimension')}"
        raise UndefinedScoreError(f"{found}, because all cosines would be equal. Set a smaller `whitening`")
    centered = x - x.mean(0, dtype=np.float64)
    directions, variances, _ = np.linalg.svd(centered.T @ centered / len(x))
    if variances[0] <= 1e-12 * np.square(x, dtype=np.float64).sum(1).mean():  # only rounding
        raise UndefinedScoreError("All embeddings are equal, so they cannot be whitened")
    varies = variances > 1e-10 * variances[0]  # directions without variance would amplify noise
    kernel = (directions[:, varies] / np.sqrt(variances[varies]))[:, :kept]
    return (centered @ kernel).astype(np.float32)


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


def hubness(neighbors: np.ndarray) -> float:
    """Return the skewness of neighbor counts: 0 without hubs, high if a few rows are neighbors of very many.

    Args:
        neighbors: Indices (N, k), from `informin.evaluation.neighbors.nearest`.

    Source:
        Radovanovic, Nanopoulos & Ivanovic (JMLR 2010), eq. 1.
    """
    counts = np.bincount(neighbors.ravel(), minlength=len(neighbors))  # k on average
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
