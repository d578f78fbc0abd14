"""What an index adds to `eval --retrieval`: rankings by smoothed vectors, BM25, both, reranking, and rank fusion."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from informin.evaluation.evaluate import EmbeddedCollection, Prompts
from informin.evaluation.retrieval import DEPTH, Collection, Similarity
from informin.evaluation.rows import top, unit_rows
from informin.frozen.adapter import smooth_rows
from informin.frozen.bm25 import BM25, WORD_WEIGHT, language_name, z_scores
from informin.frozen.late_interaction import CANDIDATES, Tokens, TokenVectors
from informin.frozen.token_vectors import embed_documents, embed_queries, has_token_vectors

FUSION = 60  # the constant of reciprocal rank fusion
FUSION_DEPTH = 2_000  # documents of each ranking that are fused; the complete ranking of small collections


@dataclass(frozen=True)
class SearchRankings:
    """Rankings of an index, for `informin.evaluate`.

    Their names in the results are `smoothed`, `bm25`, `with_words` (vectors and BM25, as an index ranks), `reranked`
    (the same, reranked by token vectors) and `fused`. Only a model with token vectors reranks, in one process and
    without whitening.

    Args:
        language: Language of stop words and stems; see `BM25.build`.
        fuse: Also fuse the ranks of BM25 and of the vectors.

    Raises:
        UsageError: The language is unknown.
    """

    language: str = "english"
    fuse: bool = False

    def __post_init__(self):
        object.__setattr__(self, "language", language_name(self.language))

    @property
    def settings(self) -> dict[str, Any]:
        """What is saved with the scores."""
        return {"language": self.language}

    def has_ranked(self, entry: dict[str, Any]) -> bool:
        """Return whether the saved scores of a collection are those of these rankings."""
        return entry.get("language") == self.language and (not self.fuse or "fused" in entry)

    def embed(
        self, model: SentenceTransformer, collection: Collection, prompts: Prompts, batch_size: int
    ) -> EmbeddedCollection | None:
        """Embed a collection and its tokens in the same forward pass; None for a model without token vectors."""
        if not has_token_vectors(model):
            return None
        documents, stored = embed_documents(model, collection.documents, prompts["document"], batch_size)
        queries, asked = embed_queries(model, collection.queries, stored.projection, prompts["query"], batch_size)
        return EmbeddedCollection(queries, documents, (stored, asked))

    def rank(
        self, collection: Collection, embedded: EmbeddedCollection, similarity: Similarity | None
    ) -> dict[str, np.ndarray]:
        """Return the rankings (Q, K) of the documents by name."""
        bm25 = BM25.build(collection.documents, self.language)
        by_words, ranks = bm25_search(collection, bm25, FUSION_DEPTH)
        smoothed = smooth_rows(unit_rows(embedded.documents))
        found = {"smoothed": collection.rank(embedded.queries, smoothed, similarity=similarity)}
        found |= index_rankings(collection, embedded, bm25, similarity)
        found["bm25"] = by_words
        if self.fuse:
            by_vectors = collection.rank(embedded.queries, embedded.documents, FUSION_DEPTH, similarity)
            found["fused"] = fused_ranking(by_vectors, by_words, len(collection.documents), ranks)
        return found


def index_rankings(
    collection: Collection, embedded: EmbeddedCollection, bm25: BM25, similarity: Similarity | None
) -> dict[str, np.ndarray]:
    """Rank documents (Q, K) by the sum of the z-scores of vectors and BM25; and rerank them, with token vectors."""
    shape = len(collection.queries), min(DEPTH, len(collection.documents))
    ranking, reranked = np.empty((2, *shape), int)
    for part, similarities in collection.similarities(embedded.queries, embedded.documents, similarity):
        scores = z_scores(similarities) + WORD_WEIGHT * z_scores(bm25.scores(collection.queries[part]))
        ranking[part] = collection.highest(part, scores, DEPTH)
        if embedded.tokens:
            stored, asked = embedded.tokens
            for row, query, values in zip(range(len(scores)), asked[part], scores):
                reranked[part][row] = reranked_first(stored, query, ranking[part][row], values)
    return {"with_words": ranking} | ({"reranked": reranked} if embedded.tokens else {})


def reranked_first(stored: TokenVectors, query: Tokens, ranked: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return a ranking (K,) whose first documents are in the order of their scores with those of token vectors.

    Args:
        stored: Token vectors of the D documents.
        query: Tokens of the query.
        ranked: (K,) indices of documents, best first; -1 comes last where there are fewer.
        scores: (D,) sums of z-scores of vectors and BM25.
    """
    first = ranked[:CANDIDATES]
    first = first[first >= 0]
    if not len(first):
        return ranked
    _, added = stored.rerank(query, first)
    order = np.argsort(-(scores[first] + added), kind="stable")
    return np.concatenate([first[order], ranked[len(first) :]])


def bm25_search(collection: Collection, bm25: BM25, depth: int = DEPTH) -> tuple[np.ndarray, np.ndarray]:
    """Rank documents by the BM25 scores of their words.

    Returns:
        Indices (Q, K) of the documents that share a word with the query, best first, then -1. Ranks (Q, K) from 1;
        documents with equal scores share the first of their ranks.
    """
    shape = len(collection.queries), min(depth, len(collection.documents))
    ranking = np.full(shape, -1)
    ranks = np.zeros(shape, dtype=np.int64)
    for row, query in enumerate(collection.queries):
        (scores,) = bm25.scores([query])
        scores[scores <= 0] = -np.inf  # has none of the words
        if collection.same[row] >= 0:
            scores[collection.same[row]] = -np.inf
        ranking[row] = top(scores, shape[1])
        found = scores[ranking[row]]
        first = np.r_[True, found[1:] != found[:-1]]  # of the documents with this score
        ranks[row] = 1 + np.maximum.accumulate(np.where(first, np.arange(len(found)), 0))
    return ranking, ranks


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
