"""Compare encoders on a test collection: metrics, BM25 and rank fusion rows, and a paired randomization test."""

from typing import Any

import numpy as np

from informin.errors import UsageError
from informin.evaluation.collections import DEPTH, Collection
from informin.evaluation.measures import SEARCH
from informin.evaluation.ranking import top
from informin.evaluation.table import Row, Table

TRIALS = 10_000
SIGNS = 2**20  # at a time: 8 MiB, and as much for drawing them
FUSION = 60  # the constant of reciprocal rank fusion
FUSION_DEPTH = 2_000  # documents of each ranking that are fused; the complete ranking of small collections
TESTED = ("ndcg_10", "recall_100")


def bm25_search(collection: Collection, depth: int = DEPTH) -> tuple[np.ndarray, np.ndarray]:
    """Rank documents by BM25 of the library bm25s, with English stop words removed.

    Returns:
        Indices (Q, K) of the documents that share a word with the query, best first, then -1. Ranks (Q, K) from 1;
        documents with equal scores share the first of their ranks.

    Raises:
        UsageError: bm25s is not installed.
    """
    try:
        import bm25s
    except ImportError:
        fix = "Install the extra `search` (see Install in README), or leave out `bm25`."
        raise UsageError("needs the package bm25s, which is not installed", option="bm25", fix=fix) from None
    shape = len(collection.queries), min(depth, len(collection.documents))
    ranking, ranks = np.full(shape, -1), np.zeros(shape, dtype=np.int64)
    how: dict[str, Any] = dict(stopwords="en", show_progress=False)
    words = bm25s.tokenize(collection.documents, **how)
    if not any(words.ids):  # bm25s cannot index documents that are all empty
        return ranking, ranks
    index = bm25s.BM25()
    index.index(words, show_progress=False)
    for row, asked in enumerate(bm25s.tokenize(collection.queries, return_ids=False, **how)):
        if known := [word for word in asked if word in index.vocab_dict]:
            scores = index.get_scores(known)
            scores[scores <= 0] = -np.inf  # found by no word
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
            found = ranking[row] >= 0
            rows = ranking[row][found]
            scores[rows] = np.maximum(scores[rows], 0) + 1 / (FUSION + places[row][found])
        fused[row] = top(scores, one.shape[1])
    return fused


def randomization_test(one: np.ndarray, other: np.ndarray, seed: int = 0) -> float:
    """Return the two-sided p-value of a paired randomization test over queries.

    Under the null hypothesis the two scores of a query may be swapped: signs of the differences are flipped 10,000
    times, in blocks to limit memory.

    Args:
        one, other: (Q,) scores of the same queries.

    Source:
        Smucker, Allan & Carterette (2007).
    """
    differences = one - other
    source, step = np.random.default_rng(seed), max(1, SIGNS // len(differences))
    least, above = abs(differences.sum()) - 1e-9, 0
    for start in range(0, TRIALS, step):
        signs = source.choice([-1.0, 1.0], size=(min(step, TRIALS - start), len(differences)))
        above += int((np.abs(signs @ differences) >= least).sum())
    return (1 + above) / (1 + TRIALS)


def search_table(collection: Collection, rows: dict[str, dict[str, np.ndarray]], baseline: str | None = None) -> Table:
    """Return a table of metrics, with p-values against one of the rows.

    Args:
        rows: Per-query scores by the row's label.
        baseline: Label of the row that the others are tested against; None for no test.
    """
    titles = {name: measure.title for name, measure in SEARCH.items()}
    lines = []
    for label, scores in rows.items():
        values: dict[str, float | str | None] = {titles[name]: float(scores[name].mean()) for name in SEARCH}
        if baseline is not None and label != baseline:
            for name in TESTED:
                p = randomization_test(scores[name], rows[baseline][name])
                values[f"p, {titles[name]}"] = f"{p:.4f}"
        lines.append(Row(label, values))
    title = f"{collection.name}: {len(collection.queries):,} queries, {len(collection.documents):,} documents, x 100"
    return Table(title, [*titles.values(), *(f"p, {titles[name]}" for name in TESTED if baseline)], lines)
