"""Similarities of queries to document vectors.

Few documents are all compared. Of more, the leading directions of the vectors choose the candidates, because reading
all numbers of 100,000 vectors from memory takes most of the time of a search. FAISS does so for millions.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from informin.evaluation.words import NEARLY_EQUAL
from informin.packages import is_installed
from informin.rows import top

COMPARED = 2**24  # numbers, of 43,690 vectors of 384: of fewer, all are compared
IN_MEMORY = 2**28  # numbers: of more, FAISS chooses the candidates, if it is installed
BLOCK = 16_384  # rows converted to float32 at a time
# With these, 99.98% of the first ten hits are found, and 99.9% or more of the first 50 (docs/search.md).
LEADING_DIRECTIONS = 128
MOST_CANDIDATES = 1_000  # at first
MARGIN = 6  # in standard deviations of what the leading directions leave of the similarities to a query
SAMPLED_ROWS = 4_096  # rows that the spread of similarities and the leading directions are computed from

Candidates = tuple[np.ndarray, np.ndarray]  # places, ascending, and their similarities


class Vectors:
    """Document vectors to compare with queries by dot product.

    Args:
        documents: (N, d) float16, usually memory-mapped.
        places: (M,) places of the documents that are compared, ascending.
    """

    def __init__(self, documents: np.ndarray, places: np.ndarray):
        self.documents = np.asarray(documents)  # without the class of memory maps, whose rows take longer to read
        self.places = places
        sampled = np.unique(np.linspace(0, len(documents) - 1, SAMPLED_ROWS).astype(int))
        sample = self.documents[sampled].astype(np.float32)
        self.center = sample.mean(0)  # (d,)
        self.deviations = np.linalg.qr(sample - self.center, mode="r") / len(sample) ** 0.5  # (at most d, d)
        numbers = len(places) * documents.shape[1]
        self.copy = self._converted() if numbers <= COMPARED else None
        self.faiss: Any = self._faiss_index() if numbers > IN_MEMORY and is_installed("faiss") else None
        has_leading = self.copy is None and self.faiss is None
        if has_leading:
            self.directions = leading_directions(sample)  # (d, k)
            self.leading = self._converted(self.directions)  # (M, k)
            self.rest = np.eye(len(self.center), dtype=np.float32) - self.directions @ self.directions.T  # (d, d)
            self.rest_deviations = self.deviations @ self.rest  # (at most d, d)

    def moments(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation (Q, 1) of the similarities of queries (Q, d) to the documents.

        The deviation is 1 where the similarities are equal up to rounding.
        """
        mean = (queries @ self.center)[:, None]
        # The length of R q is the length of S q for a sample S = Q R, and R has few rows.
        deviation = np.linalg.norm(queries @ self.deviations.T, axis=1, keepdims=True)
        return mean, np.where(deviation > NEARLY_EQUAL * np.abs(mean), deviation, 1)

    def candidates(self, queries: np.ndarray, added: np.ndarray, k: int) -> Iterator[Candidates]:
        """Yield for each query the places of documents that may be hits, ascending, and their similarities.

        Args:
            queries: (Q, d) float32.
            added: (Q, N) what the words add to the similarities.
            k: Number of hits.
        """
        if self.copy is not None:
            yield from ((self.places, similarities) for similarities in queries @ self.copy.T)
            return
        if len(self.places) < len(self.documents):
            added = added[:, self.places]
        depth = min(max(MOST_CANDIDATES, 10 * k), len(self.places))
        if self.faiss is not None:
            found = self.faiss.search(queries, depth)[1]
            for query, indices, more in zip(queries, found, added):
                nearest = np.union1d(indices, top(more, depth))
                yield self.places[nearest], self._compared(query, nearest)
            return
        margins = self._margins(queries)
        leading = queries @ self.directions @ self.leading.T
        leading += added
        for query, scores, more, margin in zip(queries, leading, added, margins):
            yield self._by_leading(query, scores, more, margin, k, depth)

    def _margins(self, queries: np.ndarray) -> np.ndarray:
        """Return how much higher a similarity (Q,) may be than what the leading directions make of it.

        For a query q and the projection P on the other directions, q P d has a mean and a standard deviation over the
        documents d.
        """
        deviation = np.linalg.norm(queries @ self.rest_deviations.T, axis=1)
        return queries @ (self.rest @ self.center) + MARGIN * deviation

    def _by_leading(
        self, query: np.ndarray, leading: np.ndarray, added: np.ndarray, margin: float, k: int, depth: int
    ) -> Candidates:
        """Return the places of documents that may be hits of a query, ascending, and their similarities.

        The k-th best score of the first candidates is a bound. Every document that may exceed it is a candidate, too:
        hundreds if many are nearly equal, and most if the leading directions say little about the others.

        Args:
            query: (d,) float32.
            leading: (M,) scores by the leading directions.
            added: (M,) what the words add to the similarities.
            margin: How much higher the score of a document may be than that by the leading directions.
            k: Number of hits.
            depth: Number of candidates at first.
        """
        nearest = np.sort(top(leading, depth))
        similarities = self._compared(query, nearest)
        if depth < len(leading):
            scores = similarities + added[nearest]
            least = np.partition(scores, -k)[-k]
            possible = np.flatnonzero(leading >= least - margin)
            if len(possible) > depth:
                nearest = possible
                similarities = self._compared(query, nearest)
        return self.places[nearest], similarities

    def _compared(self, query: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """Return the similarities of a query (d,) to documents, given by indices in `places`."""
        return as_float32(self.documents[self.places[indices]]) @ query

    def _blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield slices of `places` and the documents there in float32."""
        for start in range(0, len(self.places), BLOCK):
            part = slice(start, start + BLOCK)
            yield part, as_float32(self.documents[self.places[part]])

    def _converted(self, directions: np.ndarray | None = None) -> np.ndarray:
        """Return the documents in float32 (M, d), or their coordinates (M, k) in some directions (d, k).

        Columns are contiguous, which halves the time of a product with one query.
        """
        width = self.documents.shape[1] if directions is None else directions.shape[1]
        converted = np.empty((len(self.places), width), np.float32, order="F")
        for part, block in self._blocks():
            converted[part] = block if directions is None else block @ directions
        return converted

    def _faiss_index(self) -> Any:
        """Return an exact FAISS index that holds the vectors as float16."""
        import faiss

        kind = faiss.ScalarQuantizer.QT_fp16
        index = faiss.IndexScalarQuantizer(self.documents.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
        index.is_trained = True
        for _, block in self._blocks():
            index.add(block)
        return index


def as_float32(halves: np.ndarray) -> np.ndarray:
    """Return finite float16 numbers as float32, in a quarter of the time of `astype`."""
    bits = halves.view(np.int16).astype(np.int32)  # repeats the sign in the upper half
    bits <<= 13  # exponent and fraction are where float32 has them
    bits &= ~0x70000000  # keeps one of the repeated signs
    numbers = bits.view(np.float32)
    numbers *= 2.0 ** (127 - 15)  # the difference between the biases of the two exponents
    return numbers


def leading_directions(sample: np.ndarray) -> np.ndarray:
    """Return the directions (d, k) in which vectors (n, d) are largest."""
    _, directions = np.linalg.eigh(sample.T @ sample)  # ascending
    return directions[:, ::-1][:, :LEADING_DIRECTIONS].copy()
