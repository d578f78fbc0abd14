"""Encode functions that encode each distinct text once."""

from collections.abc import Callable, Sequence

import numpy as np

from informin.errors import UndefinedScoreError

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
