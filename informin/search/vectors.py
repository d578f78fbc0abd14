"""Similarities of queries to document vectors.

Few documents are all compared. Of more, the leading directions of the vectors choose the candidates, because reading
all numbers of 100,000 vectors from memory takes most of the time of a search. FAISS does so for millions.
"""

from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np

from informin.evaluation.words import spread
from informin.rows import top

COMPARED = 2**24  # numbers, of 43,690 vectors of 384: of fewer, all are compared
IN_MEMORY = 2**28  # numbers: of more, FAISS chooses the candidates, if it is installed
BLOCK = 16_384  # rows converted to float32 at a time
# With 96 directions and 1,000 candidates, 99.98% of the first ten hits among 100,000 texts are found.
LEADING_DIRECTIONS = 96
MOST_CANDIDATES = 1_000
SAMPLED_ROWS = 4_096  # rows that the spread of similarities and the leading directions are computed from

HALVES = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)  # all float16 numbers, by their bits

Candidates = tuple[np.ndarray, np.ndarray]  # rows, ascending, and their similarities


class Vectors:
    """Document vectors to compare with queries by dot product.

    Args:
        documents: (N, d) float16, usually memory-mapped.
    """

    def __init__(self, documents: np.ndarray):
        self.documents = documents
        sample = np.unique(np.linspace(0, len(documents) - 1, SAMPLED_ROWS).astype(int))
        self.sample = np.asfortranarray(documents[sample], np.float32)  # as in `_converted`
        self.copy = _converted(documents) if documents.size <= COMPARED else None
        is_large = documents.size > IN_MEMORY and find_spec("faiss")
        self.faiss = _faiss_index(documents) if is_large else None
        has_leading = self.copy is None and self.faiss is None
        self.directions = leading_directions(self.sample) if has_leading else None  # (d, k)
        self.leading = _converted(documents, self.directions) if has_leading else None  # (N, k)

    def moments(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation (Q, 1) of the similarities of queries (Q, d) to the documents."""
        similarities = queries @ self.sample.T
        return similarities.mean(1, keepdims=True), spread(similarities)

    def candidates(self, queries: np.ndarray, added: np.ndarray, k: int) -> Iterator[Candidates]:
        """Yield for each query the rows that may be hits, and their similarities.

        Args:
            queries: (Q, d) float32.
            added: (Q, N) what the words add to the similarities.
            k: Number of hits.
        """
        if self.copy is not None:
            rows = np.arange(len(self.documents))
            yield from ((rows, similarities) for similarities in queries @ self.copy.T)
            return
        depth = min(max(MOST_CANDIDATES, 10 * k), len(self.documents))
        for query, more in zip(queries, added):
            rows = self._nearest(query, more, depth)
            yield rows, HALVES.take(self.documents[rows].view(np.uint16)) @ query  # a quarter of the time of astype

    def _nearest(self, query: np.ndarray, added: np.ndarray, depth: int) -> np.ndarray:
        if self.faiss is None:
            return np.sort(top(self.leading @ (query @ self.directions) + added, depth))
        return np.union1d(self.faiss.search(query[None], depth)[1][0], top(added, depth))


def leading_directions(sample: np.ndarray) -> np.ndarray:
    """Return the directions (d, k) in which vectors (n, d) are largest."""
    _, directions = np.linalg.eigh(sample.T @ sample)  # ascending
    return directions[:, ::-1][:, :LEADING_DIRECTIONS].copy()


def _converted(documents: np.ndarray, directions: np.ndarray | None = None) -> np.ndarray:
    """Return the documents in float32 (N, d), or their coordinates (N, k) in some directions (d, k).

    Columns are contiguous, which halves the time of a product with one query.
    """
    width = documents.shape[1] if directions is None else directions.shape[1]
    converted = np.empty((len(documents), width), np.float32, order="F")
    for start in range(0, len(documents), BLOCK):
        block = documents[start : start + BLOCK].astype(np.float32)
        converted[start : start + BLOCK] = block if directions is None else block @ directions
    return converted


def _faiss_index(documents: np.ndarray):
    """Return an exact FAISS index that holds the vectors as float16."""
    import faiss

    index = faiss.IndexScalarQuantizer(documents.shape[1], faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
    index.is_trained = True
    for start in range(0, len(documents), BLOCK):
        index.add(documents[start : start + BLOCK].astype(np.float32))
    return index
