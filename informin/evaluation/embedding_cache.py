"""A cache of embeddings, so that each distinct sentence is encoded once."""

from collections.abc import Callable, Sequence

import numpy as np

from informin.errors import UndefinedScoreError

Encode = Callable[[Sequence[str]], np.ndarray]  # from N sentences to embeddings (N, d)


class EmbeddingCache:
    """Caches embeddings, so that each distinct sentence is encoded once across all calls.

    Args:
        encode: Function from N sentences to embeddings (N, d) by pooler.
    """

    def __init__(self, encode: Callable[[Sequence[str]], dict[str, np.ndarray]]):
        self._encode = encode
        self._row: dict[str, int] = {}
        self._embeddings: dict[str, np.ndarray] = {}

    def add(self, sentences: Sequence[str]) -> None:
        """Encode the sentences that are not in the cache yet, in one call."""
        new = [sentence for sentence in dict.fromkeys(sentences) if sentence not in self._row]
        if not new:
            return
        for pooler, x in self._encode(new).items():
            cached = self._embeddings.get(pooler)
            self._embeddings[pooler] = x if cached is None else np.concatenate([cached, x])
        self._row |= {sentence: i for i, sentence in enumerate(new, start=len(self._row))}

    def by(self, pooler: str) -> Encode:
        """Return an encode function for one pooler, from N sentences to embeddings (N, d)."""

        def encode(sentences: Sequence[str]) -> np.ndarray:
            self.add(sentences)
            return self._embeddings[pooler][[self._row[sentence] for sentence in sentences]]

        return encode


def embed_once(encode: Encode, sentences: Sequence[str]) -> Encode:
    """Encode the distinct sentences in one call, and return a lookup from M of them to embeddings (M, d).

    Raises:
        UndefinedScoreError: An embedding is not finite.
    """

    def finite(distinct: Sequence[str]) -> dict[str, np.ndarray]:
        embeddings = encode(distinct)  # (distinct sentences, d)
        broken = int((~np.isfinite(embeddings)).any(axis=1).sum())
        if broken:
            raise UndefinedScoreError(f"the embeddings of {broken:,} of {len(distinct):,} sentences are not finite")
        return {"": embeddings}

    once = EmbeddingCache(finite)
    once.add(sentences)
    return once.by("")
