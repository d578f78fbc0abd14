"""Queries with relevant documents, and scores of how search ranks these documents."""

import hashlib
import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from informin.errors import UndefinedScoreError, UsageError, counted
from informin.evaluation.embedding_cache import Encode, embed_once
from informin.evaluation.grades import grade_in, refuse_contradiction
from informin.evaluation.measures import SEARCH, Measure
from informin.evaluation.ranking import ranking_scores, top
from informin.evaluation.similarity import COSINE, prepared, similarities, smallest_difference
from informin.evaluation.table_files import is_empty, rows_by_column, sentence_in, text_in

logger = logging.getLogger(__name__)

COLUMNS = ("query", "document")
CUT = 100  # documents ranked per query
BLOCK = 2**24  # similarities at a time: 64 MiB


@dataclass(frozen=True)
class RetrievalPairs:
    """N rows of a query and a document with its relevance, and further documents without a query.

    A query with several relevant documents has one row for each. Queries without one are not scored.
    """

    name: str  # name in tables
    queries: list[str]
    documents: list[str]  # N
    negatives: list[str] | None = None  # further documents to search among
    relevance: list[int] | None = None  # N grades, 0 for not relevant; None for all 1

    kind: ClassVar[str] = "retrieval"
    measures: ClassVar[dict[str, Measure]] = SEARCH

    @property
    def sha256(self) -> str:
        """SHA-256 of all texts and grades, independent of the file name."""
        parts = [self.queries, self.documents, self.negatives or []]
        if set(self.grades) != {1}:
            parts.append(list(map(str, self.grades)))
        return hashlib.sha256("\0\0".join("\0".join(texts) for texts in parts).encode()).hexdigest()

    @property
    def grades(self) -> list[int]:
        """Relevance of each row."""
        return self.relevance or [1] * len(self.queries)

    @property
    def counts(self) -> dict[str, int]:
        """Number of distinct queries scored, and of documents."""
        return {"n": len(self.answers), "documents": len(self.pool())}

    @cached_property
    def answers(self) -> dict[str, dict[str, int]]:
        """Relevant documents and their grades, by distinct query; queries without one are left out."""
        answers: dict[str, dict[str, int]] = {}
        for query, document, grade in zip(self.queries, self.documents, self.grades):
            if grade > 0:
                answers.setdefault(query, {})[document] = grade
        return answers

    def pool(self) -> list[str]:
        """Return the distinct documents to search, negatives last."""
        return list(dict.fromkeys([*self.documents, *(self.negatives or [])]))

    def texts(self) -> list[str]:
        """Return the distinct queries and documents to embed."""
        return list(dict.fromkeys([*self.answers, *self.pool()]))

    def score(self, encode: Encode, encode_queries: Encode | None = None, similarity: str = COSINE) -> dict[str, float]:
        """Return the scores of `score_retrieval`."""
        return score_retrieval(encode, self, encode_queries, similarity)


def load_retrieval_pairs(path: str | Path, option: str = "eval_retrieval") -> RetrievalPairs:
    """Load a TSV, CSV or JSONL file with `query`, `document` and optionally `negative` and `relevance` or `score`.

    Args:
        option: Name of the option that names the file, without dashes.

    Raises:
        UsageError: The file or a column does not exist, a query or document is missing or is not text, a grade is
            not an integer from 0 to 1,000 or contradicts another one, an unknown column may contain the grades, there
            are fewer than two different documents or no relevant one, or every query is its own document.
    """
    path, negatives = Path(path), []
    grades: dict[tuple[str, str], int] = {}
    for number, record in rows_by_column(path, option, COLUMNS):
        row = sentence_in(record, "query", path, number), sentence_in(record, "document", path, number)
        grade = grade_in(record, path, number)
        refuse_contradiction(f"{path}, line {number}", grade, grades.setdefault(row, grade))
        if not is_empty(record.get("negative")):
            negatives.append(text_in(record, "negative", path, number))
    queries, documents = [query for query, _ in grades], [document for _, document in grades]
    pairs = RetrievalPairs(path.name, queries, documents, negatives, list(grades.values()))
    if len(pool := pairs.pool()) < 2:
        raise UsageError(f"{path} has {counted(len(pool), 'different document')}", needed="two or more")
    if not pairs.answers:
        raise UsageError(f"{path}: every relevance is 0", needed="a row with relevance 1 or more")
    if all(query.strip() == document.strip() for query, found in pairs.answers.items() for document in found):
        raise UsageError(
            f"{path}: in each of the {len(queries):,} rows, query and document are the same text",
            needed="different texts, because any encoder retrieves a copy first",
        )
    distinct = len(set(queries))
    if without := distinct - len(pairs.answers):
        logger.warning(f"{path}: {without:,} of {distinct:,} queries have no relevant document and are left out.")
    return pairs


def score_retrieval(
    encode: Encode, pairs: RetrievalPairs, encode_queries: Encode | None = None, similarity: str = COSINE
) -> dict[str, float]:
    """Return the metrics of `ranking_scores` for search among all distinct documents.

    If a query is also a document, it is excluded from its own ranking unless it is relevant to itself. Documents with
    equal similarity are ranked by position. Queries without a relevant document are left out.

    Args:
        encode: Function from N sentences to embeddings (N, d); called once, with the distinct sentences.
        encode_queries: Function for queries, if they are embedded in another way; `encode` then embeds documents.
        similarity: One of `SIMILARITIES`.

    Raises:
        UndefinedScoreError: No query has a relevant document; or as `embed_once`.
    """
    if not pairs.answers:
        raise UndefinedScoreError("no query has a relevant document")
    if encode_queries is None:
        of_documents = of_queries = embed_once(encode, pairs.texts())
    else:
        of_documents, of_queries = embed_once(encode, pairs.pool()), embed_once(encode_queries, list(pairs.answers))
    both = prepared(similarity, of_queries(list(pairs.answers))), prepared(similarity, of_documents(pairs.pool()))
    return ranking_scores(found_grades(pairs, *both, similarity), ideal_grades(pairs))


def ideal_grades(pairs: RetrievalPairs) -> np.ndarray:
    """Return the grades (Q, R) of all relevant documents of each query in descending order, padded with 0."""
    ideal = np.zeros((len(pairs.answers), max(map(len, pairs.answers.values()))))
    for row, right in zip(ideal, pairs.answers.values()):
        row[: len(right)] = sorted(right.values(), reverse=True)
    return ideal


def found_grades(
    pairs: RetrievalPairs, queries: np.ndarray, documents: np.ndarray, similarity: str = COSINE
) -> np.ndarray:
    """Return the grades (Q, K) of the K nearest documents of each query that has a relevant one, nearest first.

    Computes similarities in blocks to limit memory.

    Args:
        queries: (Q, d) embeddings of the queries in `pairs.answers`; unit vectors for the cosine.
        documents: (D, d) embeddings of `pairs.pool()`; unit vectors for the cosine.
        similarity: One of `SIMILARITIES`.
    """
    index = {document: i for i, document in enumerate(pairs.pool())}
    texts = list(pairs.answers)
    cut = min(CUT, len(documents))
    grades, step = np.zeros((len(texts), cut)), max(1, BLOCK // len(documents))
    smallest = smallest_difference(similarity, queries, documents)
    for start in range(0, len(texts), step):
        block = (similarities(similarity, queries[start : start + step], documents) / smallest).round()
        for row, (query, values) in enumerate(zip(texts[start : start + step], block), start=start):
            right = {index[document]: grade for document, grade in pairs.answers[query].items()}
            if query in index and index[query] not in right:
                values[index[query]] = -np.inf
            grades[row] = [right.get(document, 0) for document in top(values, cut).tolist()]
    return grades
