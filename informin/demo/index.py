"""Nearest sentences by cosine: exact up to a million vectors, with FAISS above.

index = make_index(vectors)              # (N, d)
ranking = index.rank(query)              # (d,)
rows, cosines = ranking.nearest(10)
ranking.rank_of(7)                       # 1 for the nearest sentence
"""

from typing import Protocol

import numpy as np

from informin.errors import UsageError
from informin.evaluation.geometry import unit

MOST_EXACT = 1_000_000  # vectors that each query is compared with
BLOCK = 65_536  # rows scaled at a time
DEPTH = 1_000  # nearest sentences that FAISS returns; farther ones have no rank
TRAINED = 64  # vectors per list that the clusters are computed from
PROBES = 32  # lists of the FAISS index that are searched


class Ranking(Protocol):
    """The sentences in the order of their cosine to a query."""

    def nearest(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows (k,) and cosines (k,) of the nearest sentences, nearest first."""
        ...

    def rank_of(self, row: int) -> int | None:
        """Return the rank of a row, from 1; None if it is too far to be known."""
        ...


class Index(Protocol):
    """Vectors to search."""

    def rank(self, query: np.ndarray) -> Ranking:
        """Rank all sentences by their cosine to a query (d,)."""
        ...


class ExactRanking:
    """A ranking of all N sentences.

    Attributes:
        cosines: (N,) float32.
    """

    def __init__(self, cosines: np.ndarray):
        self.cosines = cosines

    def nearest(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        k = min(k, len(self.cosines))
        rows = np.argpartition(-self.cosines, k - 1)[:k]
        rows = rows[np.lexsort((rows, -self.cosines[rows]))]
        return rows, self.cosines[rows]

    def rank_of(self, row: int) -> int | None:
        return 1 + int((self.cosines > self.cosines[row]).sum())


class ExactIndex:
    """Compares a query with every vector.

    Attributes:
        vectors: (N, d) float32 unit vectors.
    """

    def __init__(self, vectors: np.ndarray):
        self.vectors = vectors

    def rank(self, query: np.ndarray) -> ExactRanking:
        return ExactRanking(self.vectors @ query)


class NearRanking:
    """A ranking of the nearest sentences only.

    Attributes:
        rows, cosines: (K,), nearest first.
    """

    def __init__(self, rows: np.ndarray, cosines: np.ndarray):
        self.rows, self.cosines = rows, cosines

    def nearest(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        return self.rows[:k], self.cosines[:k]

    def rank_of(self, row: int) -> int | None:
        (found,) = np.nonzero(self.rows == row)
        return 1 + int(found[0]) if len(found) else None


class FaissIndex:
    """Compares a query with the vectors of the nearest clusters, so a few neighbors may be missed.

    Args:
        vectors: (N, d) float32 unit vectors.

    Raises:
        UsageError: FAISS is not installed.
    """

    def __init__(self, vectors: np.ndarray):
        try:
            import faiss
        except ImportError:
            fix = "Install it: pip install 'informin-cl[search]', or search fewer sentences."
            needed = f"the package faiss-cpu above {MOST_EXACT:,} sentences"
            raise UsageError(f"{len(vectors):,} sentences", needed=needed, fix=fix) from None
        lists = int(len(vectors) ** 0.5)
        self._index = faiss.index_factory(vectors.shape[1], f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT)
        self._index.train(vectors[:: max(1, len(vectors) // (TRAINED * lists))])  # a minute instead of many
        self._index.add(vectors)
        faiss.ParameterSpace().set_index_parameter(self._index, "nprobe", min(PROBES, lists))

    def rank(self, query: np.ndarray) -> NearRanking:
        cosines, rows = self._index.search(query[None], DEPTH)
        found = rows[0] >= 0  # -1 where the searched lists have fewer
        return NearRanking(rows[0][found], cosines[0][found])


def make_index(vectors: np.ndarray, most_exact: int = MOST_EXACT) -> Index:
    """Return an index of unit vectors (N, d) float32.

    Args:
        most_exact: Number of vectors up to which every one is compared with the query.
    """
    return ExactIndex(vectors) if len(vectors) <= most_exact else FaissIndex(vectors)


def unit_rows(vectors: np.ndarray, rows: list[int] | None = None) -> np.ndarray:
    """Return rows of an array, which may be a memory map, as unit vectors (N, d) float32.

    Args:
        vectors: (M, d).
        rows: N rows; None for all.
    """
    chosen = np.arange(len(vectors)) if rows is None else np.asarray(rows)
    result = np.empty((len(chosen), vectors.shape[1]), np.float32)
    for start in range(0, len(chosen), BLOCK):
        result[start : start + BLOCK] = unit(vectors[chosen[start : start + BLOCK]])
    return result
