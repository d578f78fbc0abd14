"""Queries with the documents that answer them, and how early a search by cosine finds these."""

import hashlib
import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from informin.errors import UndefinedScoreError, UsageError, counted
from informin.evaluation.embedding_cache import Encode, embed_once
from informin.evaluation.geometry import unit
from informin.evaluation.measures import SEARCH, Measure
from informin.evaluation.ranking import ranking_scores
from informin.evaluation.table_files import as_number, rows_by_column, text_in

logger = logging.getLogger(__name__)

COLUMNS = ("query", "document")
CUT = 100  # documents of each query that are looked at
BLOCK = 2**24  # cosines at a time: 64 MiB
HIGHEST = 1000  # relevance


@dataclass(frozen=True)
class RetrievalPairs:
    """N rows of a query and a document with its relevance to the query, and documents that no query is about.

    A query may have several relevant documents, in a row each. One without any has no score.
    """

    name: str  # what to call them in tables
    queries: list[str]
    documents: list[str]  # as many
    negatives: list[str] | None = None  # further documents to search among
    relevance: list[int] | None = None  # as many as queries, 0 for not relevant; None for all 1

    kind: ClassVar[str] = "retrieval"
    measures: ClassVar[dict[str, Measure]] = SEARCH

    @property
    def sha256(self) -> str:
        """Of all texts and grades, whatever their file is called."""
        parts = [self.queries, self.documents, self.negatives or []]
        if set(self.grades) != {1}:
            parts.append(list(map(str, self.grades)))
        return hashlib.sha256("\0\0".join("\0".join(texts) for texts in parts).encode()).hexdigest()

    @property
    def grades(self) -> list[int]:
        """The relevance of each row."""
        return self.relevance or [1] * len(self.queries)

    @property
    def counts(self) -> dict[str, int]:
        """What a reader of the scores wants to know: the distinct queries, which they are means over, and documents."""
        return {"n": len(self.answers), "documents": len(self.pool())}

    @cached_property
    def answers(self) -> dict[str, dict[str, int]]:
        """The distinct queries that have a relevant document, with all that they have and their grades."""
        answers: dict[str, dict[str, int]] = {}
        for query, document, grade in zip(self.queries, self.documents, self.grades):
            if grade > 0:
                answers.setdefault(query, {})[document] = grade
        return answers

    def pool(self) -> list[str]:
        """What is searched: the distinct documents, the negatives last."""
        return list(dict.fromkeys([*self.documents, *(self.negatives or [])]))

    def texts(self) -> list[str]:
        """The distinct queries and documents that are embedded."""
        return list(dict.fromkeys([*self.answers, *self.pool()]))

    def score(self, encode: Encode) -> dict[str, float]:
        """See `score_retrieval`."""
        return score_retrieval(encode, self)


def load_retrieval_pairs(path: str | Path, option: str = "eval_retrieval") -> RetrievalPairs:
    """Queries and documents: TSV, CSV or JSONL with `query`, `document` and, if present, `negative` and `relevance`.

    Args:
        option: what names the file, without dashes, for messages.

    Raises:
        UsageError: no such file or column, a row without query or document, something else than text, a relevance that
            is no whole number from 0 to 1,000, a query and document with two of them, fewer than two different
            documents, no relevant document at all, or every query its own document.
    """
    path, grades, negatives = Path(path), {}, []
    for number, record in rows_by_column(path, option, COLUMNS):
        row = tuple(text_in(record, column, path, number) for column in COLUMNS)
        grade = _relevance(record, path, number)
        if grades.setdefault(row, grade) != grade:
            raise UsageError(
                f"{path}, line {number}: relevance {grade} of a document to which an earlier row gave {grades[row]} "
                "for the same query. Remove one of the two rows."
            )
        if record.get("negative") not in (None, ""):
            negatives.append(text_in(record, "negative", path, number))
    queries, documents = [query for query, _ in grades], [document for _, document in grades]
    pairs = RetrievalPairs(path.name, queries, documents, negatives, list(grades.values()))
    if len(pool := pairs.pool()) < 2:
        raise UsageError(f"{path}: found {counted(len(pool), 'different document')}; a search needs two or more.")
    if not pairs.answers:
        raise UsageError(f"{path}: every relevance is 0. Needed a row with a higher one.")
    if all(query.strip() == document.strip() for query, found in pairs.answers.items() for document in found):
        raise UsageError(
            f"{path}: in each of its {len(queries):,} rows the query is its own document, which any encoder finds "
            "first. Needed different texts in query and document."
        )
    distinct = len(set(queries))
    if without := distinct - len(pairs.answers):
        logger.warning(
            f"{path}: {without:,} of {distinct:,} queries have no relevant document, and the scores leave them out."
        )
    return pairs


def _relevance(record: dict, path: Path, number: int) -> int:
    """The grade of a row: a whole number; 1 where there is none."""
    if record.get("relevance") in (None, ""):
        return 1
    grade = as_number(record["relevance"], "relevance", path, number)
    if not (0 <= grade <= HIGHEST and grade.is_integer()):
        raise UsageError(
            f"{path}, line {number}: the relevance is {grade:g}; needed a whole number from 0 to {HIGHEST:,}."
        )
    return int(grade)


def score_retrieval(encode: Encode, pairs: RetrievalPairs) -> dict[str, float]:
    """How early a search by cosine among all distinct documents finds what answers a query; see `ranking_scores`.

    A query that is a document too, but answers nothing to itself, is not searched for by itself. Of equally near
    documents the first one comes first. Queries without a relevant document are left out.

    Args:
        encode: from N sentences to (N, d); called once, with the distinct sentences.

    Raises:
        UndefinedScoreError: see `embed_once`; or no query has a relevant document.
    """
    if not pairs.answers:
        raise UndefinedScoreError("no query has a relevant document")
    embedding = embed_once(encode, pairs.texts())
    grades = found_grades(pairs, lambda texts: unit(embedding(texts)).astype(np.float32))
    ideal = np.zeros((len(grades), max(map(len, pairs.answers.values()))))
    for row, right in zip(ideal, pairs.answers.values()):
        row[: len(right)] = sorted(right.values(), reverse=True)
    return ranking_scores(grades, ideal)


def found_grades(pairs: RetrievalPairs, embedding: Encode) -> np.ndarray:
    """(Q, K): the grades of the K nearest documents of each query that has a relevant one, the nearest first.

    By blocks: the cosines of all queries with all documents are never there at once.

    Args:
        embedding: from N texts to (N, d), of length 1.
    """
    place = {document: i for i, document in enumerate(pairs.pool())}
    queries, documents = list(pairs.answers), embedding(list(place))
    cut = min(CUT, len(documents))
    grades, step = np.zeros((len(queries), cut)), max(1, BLOCK // len(documents))
    for start in range(0, len(queries), step):
        asked = queries[start : start + step]
        block = (embedding(asked) @ documents.T).round(6)  # equal vectors' cosines differ in their last bits
        for row, (query, cosines) in enumerate(zip(asked, block), start=start):
            right = {place[document]: grade for document, grade in pairs.answers[query].items()}
            if query in place and place[query] not in right:
                cosines[place[query]] = -np.inf
            grades[row] = [right.get(document, 0) for document in _first(cosines, cut)]
    return grades


def _first(cosines: np.ndarray, k: int) -> list[int]:
    """The k highest of (N,) in order, of equal ones the first."""
    least = np.partition(cosines, len(cosines) - k)[len(cosines) - k]
    candidates = np.flatnonzero(cosines >= least)
    return candidates[np.argsort(-cosines[candidates], kind="stable")][:k].tolist()
