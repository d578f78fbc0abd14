"""Similarities of queries to document vectors, in memory up to 2**28 numbers, with FAISS or in blocks above."""

from importlib.util import find_spec

import numpy as np

from informin.evaluation.words import spread
from informin.rows import top

IN_MEMORY = 2**28  # numbers of a float32 copy: 1 GiB
BLOCK = 16_384  # rows converted to float32 at a time
DEPTH = 1_000  # nearest rows that FAISS returns
SAMPLE = 4_096  # rows that the spread of similarities is computed from


class Vectors:
    """Document vectors to compare with queries by dot product.

    Args:
        documents: (N, d) float16, usually memory-mapped.
    """

    def __init__(self, documents: np.ndarray):
        self.documents = documents
        sample = np.unique(np.linspace(0, len(documents) - 1, SAMPLE).astype(int))
        self.sample = documents[sample].astype(np.float32)
        self.copy = documents.astype(np.float32) if documents.size <= IN_MEMORY else None
        self.faiss = _faiss_index(documents) if self.copy is None and find_spec("faiss") else None

    def moments(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation (Q, 1) of the similarities of queries (Q, d) to the documents."""
        similarities = queries @ self.sample.T
        return similarities.mean(1, keepdims=True), spread(similarities)

    def candidates(self, queries: np.ndarray, words: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return for each query the rows that may be hits, ascending, and their similarities.

        All rows, or with FAISS the 1,000 nearest ones and the 1,000 with the best words.

        Args:
            queries: (Q, d) float32.
            words: (Q, N) scores of the words.
        """
        if self.faiss is None:
            rows = np.arange(len(self.documents))
            return [(rows, similarities) for similarities in self._all(queries)]
        depth = min(DEPTH, len(self.documents))
        nearest = self.faiss.search(queries, depth)[1]
        both = [np.union1d(near, top(scores, depth)) for near, scores in zip(nearest, words)]
        return [(rows, self.documents[rows].astype(np.float32) @ query) for rows, query in zip(both, queries)]

    def _all(self, queries: np.ndarray) -> np.ndarray:
        """Return the similarities (Q, N) to all documents."""
        if self.copy is not None:
            return queries @ self.copy.T
        import torch

        x, parts = torch.from_numpy(queries), []
        for start in range(0, len(self.documents), BLOCK):
            block = torch.from_numpy(np.array(self.documents[start : start + BLOCK]))  # faster than NumPy's conversion
            parts.append(x @ block.float().T)
        return torch.cat(parts, dim=1).numpy()


def _faiss_index(documents: np.ndarray):
    """Return an exact FAISS index that holds the vectors as float16."""
    import faiss

    index = faiss.IndexScalarQuantizer(documents.shape[1], faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
    index.is_trained = True
    for start in range(0, len(documents), BLOCK):
        index.add(documents[start : start + BLOCK].astype(np.float32))
    return index
