"""Queries with the document that answers each, and how early a search by cosine finds it."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from informin.errors import UsageError, counted
from informin.evaluation.geometry import unit
from informin.evaluation.measures import SEARCH, Measure
from informin.evaluation.once import Encode, embed_once
from informin.evaluation.rows import rows_by_column, text_in

COLUMNS = ("query", "document")
CUT = 10  # documents that are looked at
BLOCK = 2**24  # cosines at a time: 64 MiB


@dataclass(frozen=True)
class SearchPairs:
    """N queries, each with a document that answers it, and documents that answer none of them.

    A query may be there several times, with another document each time.
    """

    name: str  # what to call them in tables
    queries: list[str]
    documents: list[str]  # as many
    negatives: list[str] = field(default_factory=list)  # further documents to search among

    kind: ClassVar[str] = "triplets"
    measures: ClassVar[dict[str, Measure]] = SEARCH

    @property
    def sha256(self) -> str:
        """Of all texts, whatever their file is called."""
        parts = ["\0".join(texts) for texts in (self.queries, self.documents, self.negatives)]
        return hashlib.sha256("\0\0".join(parts).encode()).hexdigest()

    @property
    def counts(self) -> dict[str, int]:
        """What a reader of the scores wants to know: the distinct queries, which they are means over, and documents."""
        return {"n": len(set(self.queries)), "documents": len(self.pool())}

    def pool(self) -> list[str]:
        """What is searched: the distinct documents, those that answer nothing last."""
        return list(dict.fromkeys(self.documents + self.negatives))

    def texts(self) -> list[str]:
        """The distinct queries and documents."""
        return list(dict.fromkeys(self.queries + self.documents + self.negatives))

    def score(self, encode: Encode) -> dict[str, float]:
        """See `score_search`."""
        return score_search(encode, self)


def load_search_pairs(path: str | Path, option: str = "eval_triplets") -> SearchPairs:
    """Queries and documents: TSV, CSV or JSONL with `query`, `document` and, where it is there, `negative`.

    Args:
        option: what names the file, without dashes, for messages.

    Raises:
        UsageError: no such file or column, a row without query or document, something else than text, fewer than two
            different documents, or every query its own document.
    """
    path, queries, documents, negatives = Path(path), [], [], []
    for number, record in rows_by_column(path, option, COLUMNS):
        queries.append(text_in(record, "query", path, number))
        documents.append(text_in(record, "document", path, number))
        if record.get("negative") not in (None, ""):
            negatives.append(text_in(record, "negative", path, number))
    pairs = SearchPairs(path.name, queries, documents, negatives)
    if len(pool := pairs.pool()) < 2:
        raise UsageError(f"{path}: found {counted(len(pool), 'different document')}; a search needs two or more.")
    if all(query.strip() == document.strip() for query, document in zip(queries, documents)):
        raise UsageError(
            f"{path}: in each of its {len(queries):,} rows the query is its own document, which any encoder finds "
            "first. Needed different texts in query and document."
        )
    return pairs


def score_search(encode: Encode, pairs: SearchPairs) -> dict[str, float]:
    """How early a search by cosine among all distinct documents finds what answers a query.

    A query that is a document too, but answers nothing to itself, is not searched for by itself. Of equally near
    documents the first one comes first.

    Args:
        encode: from N sentences to (N, d); called once, with the distinct sentences.

    Returns:
        Means x 100 over the distinct queries, of each the best rank of a right document. `mrr_10`: its reciprocal, 0
        beyond 10. `recall_1`, `recall_10`: whether it is among the first 1 or 10.

    Raises:
        UndefinedScoreError: see `embed_once`.
    """
    embedding = embed_once(encode, pairs.texts())
    ranks = best_ranks(pairs, lambda texts: unit(embedding(texts)).astype(np.float32))
    return {
        "mrr_10": 100 * float(np.where(ranks <= CUT, 1 / ranks, 0).mean()),
        "recall_1": 100 * float((ranks <= 1).mean()),
        f"recall_{CUT}": 100 * float((ranks <= CUT).mean()),
    }


def best_ranks(pairs: SearchPairs, embedding: Encode) -> np.ndarray:
    """The rank, from 1, of the first right document of each distinct query, in the order of the queries.

    By blocks: the cosines of all queries with all documents are never there at once.

    Args:
        embedding: from N texts to (N, d), of length 1.
    """
    place = {document: i for i, document in enumerate(pairs.pool())}
    answers: dict[str, set[int]] = {}
    for query, document in zip(pairs.queries, pairs.documents):
        answers.setdefault(query, set()).add(place[document])
    queries, documents = list(answers), embedding(list(place))
    ranks, step = [], max(1, BLOCK // len(documents))
    for start in range(0, len(queries), step):
        asked = queries[start : start + step]
        block = (embedding(asked) @ documents.T).round(6)  # equal vectors' cosines differ in their last bits
        for query, cosines in zip(asked, block):
            right = sorted(answers[query])
            if place.get(query, right[0]) not in right:
                cosines[place[query]] = -np.inf
            best = right[cosines[right].argmax()]
            ranks.append(1 + (cosines > cosines[best]).sum() + (cosines[:best] == cosines[best]).sum())
    return np.array(ranks)
