"""Word search by BM25, and its rank fusion with an encoder."""

import numpy as np

from informin.evaluation.retrieval import DEPTH, Collection
from informin.evaluation.vectors import top
from informin.evaluation.words import Words

FUSION = 60  # the constant of reciprocal rank fusion
FUSION_DEPTH = 2_000  # documents of each ranking that are fused; the complete ranking of small collections


def bm25_search(collection: Collection, words: Words, depth: int = DEPTH) -> tuple[np.ndarray, np.ndarray]:
    """Rank documents by the BM25 scores of their words.

    Returns:
        Indices (Q, K) of the documents that share a word with the query, best first, then -1. Ranks (Q, K) from 1;
        documents with equal scores share the first of their ranks.
    """
    shape = len(collection.queries), min(depth, len(collection.documents))
    ranking = np.full(shape, -1)
    ranks = np.zeros(shape, dtype=np.int64)
    for row, query in enumerate(collection.queries):
        (scores,) = words.scores([query])
        scores[scores <= 0] = -np.inf  # has none of the words
        if collection.same[row] >= 0:
            scores[collection.same[row]] = -np.inf
        ranking[row] = top(scores, shape[1])
        ranks[row] = _shared_ranks(scores[ranking[row]])
    return ranking, ranks


def _shared_ranks(scores: np.ndarray) -> np.ndarray:
    """Return the ranks (K,) from 1 of scores in descending order; ties share the best rank."""
    first = np.r_[True, scores[1:] != scores[:-1]]
    return 1 + np.maximum.accumulate(np.where(first, np.arange(len(scores)), 0))


def fused_ranking(one: np.ndarray, other: np.ndarray, documents: int, ranks: np.ndarray | None = None) -> np.ndarray:
    """Fuse two rankings (Q, K): the score of a document is the sum of 1 / (60 + rank) over both.

    A document that is not in a ranking, where it has -1, gets nothing from it.

    Args:
        documents: Number of documents in the collection.
        ranks: Ranks (Q, K) of the documents in `other`; None for their positions from 1.

    Returns:
        (Q, K) indices, best first; -1 comes last where there are fewer.

    Source:
        Cormack, Clarke & Büttcher (2009), "Reciprocal rank fusion".
    """
    positions = np.broadcast_to(np.arange(1, one.shape[1] + 1), one.shape)
    fused = np.empty_like(one)
    for row in range(len(one)):
        scores = np.full(documents, -np.inf)
        for ranking, places in ((one, positions), (other, positions if ranks is None else ranks)):
            ranked = ranking[row] >= 0
            rows = ranking[row][ranked]
            scores[rows] = np.maximum(scores[rows], 0) + 1 / (FUSION + places[row][ranked])
        fused[row] = top(scores, one.shape[1])
    return fused
