"""Nearest sentences by cosine or another similarity: exact up to a million vectors, with FAISS above.

index = make_index(vectors)              # (N, d)
ranking = index.rank(query)              # (d,)
rows, similarities = ranking.nearest(10)
ranking.rank_of(7)                       # 1 for the nearest sentence
"""

from collections.abc import Callable

import numpy as np

from informin.errors import UsageError
from informin.evaluation.geometry import unit
from informin.evaluation.similarity import COSINE, METRICS, similarities

MOST_EXACT = 1_000_000  # vectors that each query is compared with
ROWS_AT_ONCE = 65_536  # rows scaled at a time
DEPTH = 1_000  # nearest sentences that FAISS returns; farther ones have no rank
TRAINED = 64  # vectors per list that the clusters are computed from
PROBES = 32  # lists of the FAISS index that are searched


class ExactRanking:
    """A ranking of all N sentences.

    Attributes:
        similarities: (N,) float32.
    """

    def __init__(self, similarities: np.ndarray):
        self.similarities = similarities

    def nearest(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows (k,) and similarities (k,) of the nearest sentences, nearest first."""
        k = min(k, len(self.similarities))
        least = np.partition(self.similarities, -k)[-k]
        rows = np.flatnonzero(self.similarities >= least)  # all that are equal to the last one, in their order
        rows = rows[np.lexsort((rows, -self.similarities[rows]))][:k]
        return rows, self.similarities[rows]

    def rank_of(self, row: int) -> int:
        """Return the rank of a row, from 1. Equally similar rows are in their order, as in `nearest`."""
        before = (self.similarities > self.similarities[row]).sum()
        return 1 + int(before + (self.similarities[:row] == self.similarities[row]).sum())


class ExactIndex:
    """Compares a query with every vector.

    Attributes:
        vectors: (N, d) float32; unit vectors for the cosine.
        similarity: One of `informin.evaluation.similarity.SIMILARITIES`.
    """

    def __init__(self, vectors: np.ndarray, similarity: str = COSINE):
        self.vectors, self.similarity = vectors, similarity

    def rank(self, query: np.ndarray) -> ExactRanking:
        """Rank all sentences by their similarity to a query (d,)."""
        return ExactRanking(similarities(self.similarity, query[None], self.vectors)[0])


class NearRanking:
    """A ranking of the nearest sentences only.

    Attributes:
        rows, similarities: (K,), nearest first.
    """

    def __init__(self, rows: np.ndarray, similarities: np.ndarray):
        self.rows, self.similarities = rows, similarities

    def nearest(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        return self.rows[:k], self.similarities[:k]

    def rank_of(self, row: int) -> int | None:
        """Return the rank of a row, from 1; None if it is too far to be known."""
        (found,) = np.nonzero(self.rows == row)
        return 1 + int(found[0]) if len(found) else None


class FaissIndex:
    """Compares a query with the vectors of the nearest clusters, so a few neighbors may be missed.

    Args:
        vectors: (N, d) float32, compared by dot product.

    Raises:
        UsageError: FAISS is not installed.
    """

    def __init__(self, vectors: np.ndarray):
        try:
            import faiss
        except ImportError:
            fix = "Install the extra `search` (see Install in README), or search fewer sentences."
            needed = f"the package faiss-cpu above {MOST_EXACT:,} sentences"
            raise UsageError(f"{len(vectors):,} sentences", needed=needed, fix=fix) from None
        lists = int(len(vectors) ** 0.5)
        self._index = faiss.index_factory(vectors.shape[1], f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT)
        self._index.train(vectors[:: max(1, len(vectors) // (TRAINED * lists))])  # a minute instead of many
        self._index.add(vectors)
        faiss.ParameterSpace().set_index_parameter(self._index, "nprobe", min(PROBES, lists))

    def rank(self, query: np.ndarray) -> NearRanking:
        products, rows = self._index.search(query[None], DEPTH)
        found = rows[0] >= 0  # -1 where the searched lists have fewer
        return NearRanking(rows[0][found], products[0][found])


Ranking = ExactRanking | NearRanking
Index = ExactIndex | FaissIndex


def make_index(vectors: np.ndarray, most_exact: int = MOST_EXACT, similarity: str = COSINE) -> Index:
    """Return an index of vectors (N, d) float32, which are unit vectors for the cosine.

    Args:
        most_exact: Number of vectors up to which every one is compared with the query. Distances are always exact.
        similarity: One of `informin.evaluation.similarity.SIMILARITIES`.
    """
    exact = len(vectors) <= most_exact or similarity in METRICS
    return ExactIndex(vectors, similarity) if exact else FaissIndex(vectors)


def scaled_rows(vectors: np.ndarray, rows: list[int] | None = None) -> np.ndarray:
    """Return rows of an array as unit vectors (N, d) float32; see `rows_of`."""
    return rows_of(vectors, rows, unit)


def rows_of(
    vectors: np.ndarray, rows: list[int] | None = None, change: Callable[[np.ndarray], np.ndarray] = np.asarray
) -> np.ndarray:
    """Return rows of an array, which may be a memory map, as (N, d) float32.

    Args:
        vectors: (M, d).
        rows: N rows; None for all.
        change: Function that is applied to each block of rows.
    """
    chosen = np.arange(len(vectors)) if rows is None else np.asarray(rows)
    result = np.empty((len(chosen), vectors.shape[1]), np.float32)
    for start in range(0, len(chosen), ROWS_AT_ONCE):
        result[start : start + ROWS_AT_ONCE] = change(vectors[chosen[start : start + ROWS_AT_ONCE]])
    return result
