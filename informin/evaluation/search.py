"""Compare encoders on a test collection: metrics, BM25 and rank fusion rows, and a paired randomization test."""

import numpy as np

from informin.errors import UsageError
from informin.evaluation.collections import DEPTH, Collection, top
from informin.evaluation.embedding_cache import Encode
from informin.evaluation.geometry import unit
from informin.evaluation.measures import SEARCH
from informin.evaluation.table import Row, Table

TRIALS = 10_000
FUSION = 60  # the constant of reciprocal rank fusion
FUSION_DEPTH = 2_000  # documents of each ranking that are fused; the complete ranking of small collections
TESTED = ("ndcg_10", "recall_100")


def search_ranking(
    encode: Encode, collection: Collection, depth: int = DEPTH, encode_queries: Encode | None = None
) -> np.ndarray:
    """Rank the documents (Q, K) by the cosine of their embeddings to the query's.

    Args:
        encode: From N documents to (N, d).
        depth: Number of documents to rank.
        encode_queries: From N queries to (N, d); None for `encode`.
    """
    documents = unit(encode(collection.documents)).astype(np.float32)
    queries = (encode_queries or encode)(collection.queries)
    return collection.rank(unit(queries).astype(np.float32), documents, depth)


def bm25_ranking(collection: Collection, depth: int = DEPTH) -> np.ndarray:
    """Rank the documents (Q, K) by BM25 of the library bm25s, with English stop words removed.

    Documents that share no word with the query come last, in their order, as in bm25s. Queries without a known word
    retrieve nothing: their row is -1.

    Raises:
        UsageError: bm25s is not installed.
    """
    try:
        import bm25s
    except ImportError:
        fix = "Install it: pip install 'informin-cl[search]', or leave out `bm25`."
        raise UsageError("needs the package bm25s, which is not installed", option="bm25", fix=fix) from None
    index = bm25s.BM25()
    index.index(bm25s.tokenize(collection.documents, stopwords="en", show_progress=False), show_progress=False)
    vocabulary = index.vocab_dict
    ranking = np.full((len(collection.queries), min(depth, len(collection.documents))), -1, dtype=np.int64)
    tokens = bm25s.tokenize(collection.queries, stopwords="en", show_progress=False, return_ids=False)
    for row, words in enumerate(tokens):
        known = [word for word in words if word in vocabulary]
        if known:
            scores = index.get_scores(known)
            if collection.same[row] >= 0:
                scores[collection.same[row]] = -np.inf
            ranking[row] = top(scores, ranking.shape[1])
    return ranking


def fused_ranking(one: np.ndarray, other: np.ndarray, documents: int) -> np.ndarray:
    """Fuse two rankings (Q, K): the score of a document is the sum of 1 / (60 + rank) over both.

    Source:
        Cormack, Clarke & Büttcher (2009), "Reciprocal rank fusion".
    """
    fused = np.empty_like(one)
    for row, pair in enumerate(zip(one, other)):
        scores = np.zeros(documents)
        for ranked in pair:
            valid = ranked >= 0
            scores[ranked[valid]] += 1 / (FUSION + 1 + np.flatnonzero(valid))
        fused[row] = top(scores, one.shape[1])
    return fused


def randomization_test(one: np.ndarray, other: np.ndarray, seed: int = 0) -> float:
    """Return the two-sided p-value of a paired randomization test over queries.

    Under the null hypothesis the two scores of a query may be swapped: signs of the differences are flipped 10,000
    times.

    Args:
        one, other: (Q,) scores of the same queries.

    Source:
        Smucker, Allan & Carterette (2007).
    """
    differences = one - other
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(TRIALS, len(differences)))
    means = np.abs(signs @ differences)
    return float((1 + (means >= abs(differences.sum()) - 1e-9).sum()) / (1 + TRIALS))


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
