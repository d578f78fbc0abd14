"""Collections of documents, queries and grades, from a file of pairs or a folder in BEIR's layout or of TSV."""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from informin.errors import UndefinedScoreError, UsageError, counted
from informin.evaluation.collection_files import (
    LIKE_GRADES,
    Judgments,
    check_texts,
    grade_in,
    in_order,
    judge,
    read_by_id,
    read_judgments,
)
from informin.evaluation.encode import Encode, embed_once
from informin.evaluation.geometry import unit
from informin.evaluation.measures import SEARCH, Measure
from informin.evaluation.ranking import per_query_scores
from informin.evaluation.second_look import SecondLook
from informin.evaluation.words import WORD_WEIGHT, Words, z_scores
from informin.files import last_name
from informin.rows import top
from informin.texts import as_sentence, read_rows

logger = logging.getLogger(__name__)

DEPTH = 100  # documents ranked for each query
PAIRS_AT_ONCE = 2**24  # similarities at a time: 64 MiB
ROUNDING = 1e-6  # equal vectors from different batches differ in their last bits
BEIR = ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv")
TSV = ("corpus.tsv", "queries.tsv", "qrels.tsv")
PAIR_COLUMNS = ("query", "document")  # columns
Similarity = Callable[..., Any]  # from (Q, d) and (D, d) to (Q, D)


@dataclass(frozen=True)
class Collection:
    """Documents, and queries with the grades of their relevant documents.

    Attributes:
        name: Name of its file or folder, in tables.
        documents: Texts of the D documents, in the order that decides ties.
        queries: Texts of the Q queries that have a relevant document.
        grades: For each query the grades, above 0, of its relevant documents, by index.
        same: (Q,) For each query the index of the document that is the query itself, which is not searched, or -1.
        sha256: SHA-256 of all texts and grades, independent of the name.
    """

    name: str
    documents: list[str]
    queries: list[str]
    grades: list[dict[int, int]]
    same: np.ndarray
    sha256: str

    kind: ClassVar[str] = "retrieval"
    measures: ClassVar[dict[str, Measure]] = SEARCH

    @classmethod
    def of_pairs(
        cls,
        name: str,
        queries: Sequence[str],
        documents: Sequence[str],
        negatives: Sequence[str] | None = None,
        relevance: Sequence[int] | None = None,
    ) -> "Collection":
        """Create a collection from N rows of a query and a document.

        Equal texts are one query or one document. A query that is also a document is not searched for itself, unless it
        is relevant to itself.

        Args:
            name: Name in tables.
            queries, documents: N texts each. A query with several relevant documents has a row for each.
            negatives: Further documents to search among.
            relevance: N grades, 0 for not relevant; None for all 1. Queries without a relevant document are left out.
        """
        negatives = [] if negatives is None else negatives
        grades = [1] * len(queries) if relevance is None else relevance
        pool = list(dict.fromkeys(documents) | dict.fromkeys(negatives))
        index = {document: i for i, document in enumerate(pool)}
        answers: dict[str, dict[int, int]] = {}
        for query, document, grade in zip(queries, documents, grades):
            if grade > 0:
                answers.setdefault(query, {})[index[document]] = grade
        copies = {query: index.get(query, -1) for query in answers}
        same = np.array([-1 if copies[query] in right else copies[query] for query, right in answers.items()], int)
        graded = [] if set(grades) == {1} else [list(map(str, grades))]
        digest = _sha256(queries, documents, negatives, *graded)
        return cls(name, pool, list(answers), list(answers.values()), same, digest)

    @property
    def counts(self) -> dict[str, Any]:
        """Kind, and number of queries and of documents."""
        return {"kind": self.kind, "n": len(self.queries), "documents": len(self.documents)}

    def texts(self) -> list[str]:
        """Return the distinct queries and documents to embed."""
        return list(dict.fromkeys(self.queries + self.documents))

    def score(self, encode: Encode) -> dict[str, float]:
        """Return the mean over queries of each metric of `per_query_scores`, x 100.

        Args:
            encode: Function from N texts to embeddings (N, d); called once, with the distinct texts.

        Raises:
            UndefinedScoreError: No query has a relevant document, or an embedding is not finite.
        """
        if not self.queries:
            raise UndefinedScoreError("no query has a relevant document")
        return {name: float(values.mean()) for name, values in self.scores(self.search(encode)).items()}

    def search(self, encode: Encode, depth: int = DEPTH, similarity: Similarity | None = None) -> np.ndarray:
        """Rank the documents (Q, K) for each query; see `rank`.

        Args:
            encode: Function from N texts to embeddings (N, d); called once, with the distinct texts.

        Raises:
            UndefinedScoreError: An embedding is not finite.
        """
        embedding = embed_once(encode, self.texts())
        return self.rank(embedding(self.queries), embedding(self.documents), depth, similarity)

    def scores(self, ranking: np.ndarray) -> dict[str, np.ndarray]:
        """Score rankings: see `per_query_scores`.

        Args:
            ranking: (Q, K) indices of the documents found for each query, best first; -1 for none.

        Returns:
            For each metric (Q,), x 100.
        """
        gains = np.array([[right.get(int(i), 0) for i in row] for right, row in zip(self.grades, ranking)], float)
        ideal = np.zeros((len(self.queries), max(map(len, self.grades))))
        for row, right in zip(ideal, self.grades):
            row[: len(right)] = sorted(right.values(), reverse=True)
        return per_query_scores(gains, ideal)

    def rank(
        self,
        queries: np.ndarray,
        documents: np.ndarray,
        depth: int = DEPTH,
        similarity: Similarity | None = None,
        words: Words | None = None,
        second_look: SecondLook | None = None,
    ) -> np.ndarray:
        """Rank documents by their similarity to the query, and by their words. The query itself is left out.

        Similarities that differ by less than 10^-6 of the highest one are equal, and ties keep the order of documents.

        Args:
            queries: Embeddings (Q, d) of the queries.
            documents: Embeddings (D, d) of the documents.
            depth: Number of documents to rank.
            similarity: Function from embeddings (Q, d) and (D, d) to similarities (Q, D), such as the `similarity` of a
                SentenceTransformer; None for the cosine.
            words: Words of the documents, whose scores are added as z-scores times `WORD_WEIGHT`; None for no words.
            second_look: Token vectors that reorder the first documents, as in an index; needs `words`.

        Returns:
            (Q, K) indices, best first; K is the smaller of `depth` and D. -1 comes last where there are fewer.
        """
        if similarity is None:
            queries, documents = (unit(x).astype(np.float32) for x in (queries, documents))
            similarity = _dot
        cut = min(depth, len(documents))
        step = max(1, PAIRS_AT_ONCE // len(documents))
        ranking = np.empty((len(queries), cut), dtype=np.int64)
        for start in range(0, len(queries), step):
            block: np.ndarray = np.array(similarity(queries[start : start + step], documents), np.float32)  # (step, D)
            if words is not None:
                scores = words.scores(self.queries[start : start + step])
                block = z_scores(block) + WORD_WEIGHT * z_scores(scores)
            highest = np.abs(block).max(1, keepdims=True)
            rounded = (block / np.where(highest == 0, 1, ROUNDING * highest)).round()
            for row, values in enumerate(rounded, start=start):
                if self.same[row] >= 0:
                    values[self.same[row]] = -np.inf
                ranking[row] = top(values, cut)
                if second_look is not None:
                    ranking[row] = second_look.reordered(row, ranking[row], block[row - start])
        return ranking


def load_retrieval(path: str | Path, option: str = "retrieval") -> Collection:
    """Load a test collection from a folder, or from a file of pairs; see `load_collection`, `load_retrieval_pairs`."""
    return load_collection(path) if Path(path).is_dir() else load_retrieval_pairs(path, option)


def load_retrieval_pairs(path: str | Path, option: str = "eval_retrieval") -> Collection:
    """Load a TSV, CSV or JSONL file with `query`, `document` and optionally `negative` and `relevance` or `score`.

    Args:
        option: Name of the option that names the file, without dashes.

    Raises:
        UsageError: The file or a column does not exist, a query or document is blank, no document is relevant, or as
            `grade_in` and `judge`.
    """
    path = Path(path)
    negatives = []
    judged: Judgments = {}
    for row in read_rows(path, PAIR_COLUMNS, option, optional=("negative",)):
        pair = as_sentence(row, "query"), as_sentence(row, "document")
        judge(judged, pair, grade_in(row, [name for name in row if name.strip().lower() in LIKE_GRADES]), row.place)
        if row["negative"] is not None:
            negatives.append(as_sentence(row, "negative"))
    queries = [query for query, _ in judged]
    documents = [document for _, document in judged]
    collection = Collection.of_pairs(last_name(path), queries, documents, negatives, list(judged.values()))
    if not collection.queries:
        raise UsageError(f"{path} has no relevant document", option=option)
    if without := len(set(queries)) - len(collection.queries):
        logger.warning(f"{path}: {without:,} of {len(set(queries)):,} queries have no relevant document.")
    return collection


def load_collection(folder: str | Path) -> Collection:
    """Load a test collection from a folder.

    * BEIR: `corpus.jsonl` (`_id`, `text`, optionally `title`), `queries.jsonl` (`_id`, `text`) and `qrels/test.tsv`
      (`query-id`, `corpus-id`, `score`).
    * TSV with header lines: `corpus.tsv` and `queries.tsv` (`id`, `text`, optionally `title`) and `qrels.tsv` (`query`,
      `document` and optionally `score`).

    In both, the grades can also be in a column `relevance`. A file of pairs is read by `load_retrieval_pairs`.

    Raises:
        UsageError: A judgment names an unknown id, or no document is relevant; or as `read_by_id`, `read_judgments` and
            `check_texts`.
    """
    folder = Path(folder)
    beir = (folder / BEIR[0]).is_file()
    corpus, asked, judgments = (folder / name for name in (BEIR if beir else TSV))
    documents, queries = (read_by_id(path, "_id" if beir else "id") for path in (corpus, asked))
    judged = read_judgments(judgments, *(("query-id", "corpus-id") if beir else ("query", "document")))
    for query, document in judged:
        if query not in queries or document not in documents:
            raise UsageError(f"{judgments} names {query!r} and {document!r}, and one of them does not exist")
    if not any(grade > 0 for grade in judged.values()):
        raise UsageError(f"{judgments} has no judgment above 0", fix="Add relevant documents.")
    return make_collection(last_name(folder.resolve()), documents, queries, judged, shared_ids=beir)


def make_collection(
    name: str, documents: Mapping[str, str], queries: Mapping[str, str], judged: Judgments, shared_ids: bool
) -> Collection:
    """Create a collection from texts by id and grades by query and document id.

    Args:
        shared_ids: Queries and documents share one space of ids, so a document with the id of a query is the query
            itself. It is in no ranking. If it is judged relevant, it counts as not found, as in BEIR.

    Raises:
        UsageError: See `check_texts`.
    """
    check_texts(name, documents, queries)
    order = in_order(documents)
    index = {document: i for i, document in enumerate(order)}
    grades: dict[str, dict[int, int]] = {}
    for (query, document), grade in judged.items():
        if grade > 0:
            grades.setdefault(query, {})[index[document]] = grade
    if without := len(queries) - len(grades):
        logger.info(f"{name}: {without:,} of {len(queries):,} queries have no relevant document and are left out.")
    kept = [query for query in queries if query in grades]
    same = np.array([index.get(query, -1) if shared_ids else -1 for query in kept])
    if shared := int((same >= 0).sum()):
        found = f"{counted(shared, 'document')} with the id of a query"
        logger.info(f"{name}: {found}, not searched for this query, as in BEIR.")
    if itself := sum(document in grades[query] for query, document in zip(kept, same)):
        logger.warning(f"{name}: {counted(itself, 'relevant document')} with the id of the query, never found.")
    texts = [documents[document] for document in order]
    asked = [queries[query] for query in kept]
    right = [grades[query] for query in kept]
    digest = _sha256(asked, texts, [str(sorted(graded.items())) for graded in right], list(map(str, same)))
    return Collection(name, texts, asked, right, same, digest)


def _dot(queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
    return queries @ documents.T


def _sha256(*parts: Sequence[str]) -> str:
    return hashlib.sha256("\0\0".join("\0".join(texts) for texts in parts).encode()).hexdigest()
