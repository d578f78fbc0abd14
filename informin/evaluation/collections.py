"""Collections of documents, queries and grades, from a file of pairs or a folder in BEIR's layout or of TSV."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from informin.errors import UndefinedScoreError, UsageError, counted
from informin.evaluation.collection_files import (
    OPTION,
    Judgments,
    in_order,
    read_judgments,
    read_texts,
    refuse_blank_texts,
)
from informin.evaluation.embedding_cache import Encode, embed_once
from informin.evaluation.grades import grade_in, refuse_contradiction
from informin.evaluation.measures import SEARCH, Measure
from informin.evaluation.ranking import per_query_scores, top
from informin.evaluation.similarity import COSINE, prepared, similarities, smallest_difference
from informin.evaluation.table_files import is_empty, rows_by_column, sentence_in, text_in

logger = logging.getLogger(__name__)

DEPTH = 100  # documents ranked for each query
PAIRS_AT_ONCE = 2**24  # similarities at a time: 64 MiB
BEIR = ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv")
TSV = ("corpus.tsv", "queries.tsv", "qrels.tsv")
PAIRS = ("query", "document")  # columns


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
        pool = list(dict.fromkeys([*documents, *negatives]))
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
    def counts(self) -> dict[str, int]:
        """Number of queries and of documents."""
        return {"n": len(self.queries), "documents": len(self.documents)}

    def texts(self) -> list[str]:
        """Return the distinct queries and documents to embed."""
        return list(dict.fromkeys([*self.queries, *self.documents]))

    def score(self, encode: Encode, encode_queries: Encode | None = None, similarity: str = COSINE) -> dict[str, float]:
        """Return the mean over queries of each metric of `per_query_scores`, x 100.

        Args:
            encode, encode_queries, similarity: As for `search`.

        Raises:
            UndefinedScoreError: No query has a relevant document; or as `search`.
        """
        if not self.queries:
            raise UndefinedScoreError("no query has a relevant document")
        ranking = self.search(encode, encode_queries=encode_queries, similarity=similarity)
        return {name: float(values.mean()) for name, values in self.scores(ranking).items()}

    def search(
        self,
        encode: Encode,
        depth: int = DEPTH,
        encode_queries: Encode | None = None,
        similarity: str = COSINE,
    ) -> np.ndarray:
        """Rank the documents (Q, K) by the similarity of their embeddings to the query's; see `rank`.

        Args:
            encode: Function from N texts to embeddings (N, d); called once, with the distinct texts.
            depth: Number of documents to rank.
            encode_queries: Function for queries, if they are embedded in another way; `encode` then embeds documents.
            similarity: One of `SIMILARITIES`.

        Raises:
            UndefinedScoreError: An embedding is not finite.
        """
        if encode_queries is None:
            of_documents = of_queries = embed_once(encode, self.texts())
        else:
            of_documents, of_queries = embed_once(encode, self.documents), embed_once(encode_queries, self.queries)
        queries, documents = of_queries(self.queries), of_documents(self.documents)
        return self.rank(prepared(similarity, queries), prepared(similarity, documents), depth, similarity)

    def scores(self, ranking: np.ndarray) -> dict[str, np.ndarray]:
        """Score rankings: see `per_query_scores`.

        Args:
            ranking: (Q, K) indices of the documents found for each query, best first; -1 for none.

        Returns:
            For each metric (Q,), x 100.
        """
        found = np.array([[right.get(int(i), 0) for i in row] for right, row in zip(self.grades, ranking)], float)
        ideal = np.zeros((len(self.queries), max(map(len, self.grades))))
        for row, right in zip(ideal, self.grades):
            row[: len(right)] = sorted(right.values(), reverse=True)
        return per_query_scores(found, ideal)

    def rank(
        self, queries: np.ndarray, documents: np.ndarray, depth: int = DEPTH, similarity: str = COSINE
    ) -> np.ndarray:
        """Rank documents by their similarity to the query; ties keep their order. The query itself is left out.

        Args:
            queries: (Q, d) float32; unit vectors for the cosine.
            documents: (D, d) float32; unit vectors for the cosine.
            depth: Number of documents to rank.
            similarity: One of `SIMILARITIES`.

        Returns:
            (Q, K) indices, best first; K is the smaller of `depth` and D. -1 comes last where there are fewer.
        """
        cut, step = min(depth, len(documents)), max(1, PAIRS_AT_ONCE // len(documents))
        ranking = np.empty((len(queries), cut), dtype=np.int64)
        smallest = smallest_difference(similarity, queries, documents)
        for start in range(0, len(queries), step):
            block = (similarities(similarity, queries[start : start + step], documents) / smallest).round()
            for row, values in enumerate(block, start=start):
                if self.same[row] >= 0:
                    values[self.same[row]] = -np.inf
                ranking[row] = top(values, cut)
        return ranking


def load_retrieval_pairs(path: str | Path, option: str = "eval_retrieval") -> Collection:
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
    for number, record in rows_by_column(path, option, PAIRS):
        row = sentence_in(record, "query", path, number), sentence_in(record, "document", path, number)
        grade = grade_in(record, path, number)
        refuse_contradiction(f"{path}, line {number}", grade, grades.setdefault(row, grade))
        if not is_empty(record.get("negative")):
            negatives.append(text_in(record, "negative", path, number))
    queries, documents = [query for query, _ in grades], [document for _, document in grades]
    found = Collection.of_pairs(path.name, queries, documents, negatives, list(grades.values()))
    if len(found.documents) < 2:
        raise UsageError(f"{path} has {counted(len(found.documents), 'different document')}", needed="two or more")
    if not found.queries:
        raise UsageError(f"{path}: every relevance is 0", needed="a row with relevance 1 or more")
    relevant = ((query, found.documents[i]) for query, right in zip(found.queries, found.grades) for i in right)
    if all(query.strip() == document.strip() for query, document in relevant):
        raise UsageError(
            f"{path}: in each of the {len(queries):,} rows, query and document are the same text",
            needed="different texts, because any encoder retrieves a copy first",
        )
    distinct = len(set(queries))
    if without := distinct - len(found.queries):
        logger.warning(f"{path}: {without:,} of {distinct:,} queries have no relevant document and are left out.")
    return found


def load_collection(folder: str | Path) -> Collection:
    """Load a test collection from a folder.

    * BEIR: `corpus.jsonl` (`_id`, `text`, optionally `title`), `queries.jsonl` (`_id`, `text`) and `qrels/test.tsv`
      (`query-id`, `corpus-id`, `score`).
    * TSV with header lines: `corpus.tsv` and `queries.tsv` (`id`, `text`, optionally `title`) and `qrels.tsv` (`query`,
      `document` and optionally `score`).

    In both, the grades can also be in a column `relevance`. A file of pairs is read by `load_retrieval_pairs`.

    Raises:
        UsageError: A file is missing or damaged, a judgment names an unknown id, or no document is relevant to any
            query; or as `read_texts`, `read_judgments` and `refuse_blank_texts`.
    """
    folder = Path(folder)
    names = next((names for names in (BEIR, TSV) if all((folder / name).is_file() for name in names)), None)
    if names is None:
        raise UsageError(
            f"{folder} is not a test collection",
            option=OPTION,
            needed=f"a folder with {', '.join(BEIR)} (BEIR), or with {', '.join(TSV)}",
        )
    beir = names is BEIR
    documents, queries = (read_texts(folder / name, "_id" if beir else "id") for name in names[:2])
    judged = read_judgments(folder / names[2], *(("query-id", "corpus-id") if beir else ("query", "document")))
    for query, document in judged:
        if query not in queries or document not in documents:
            unknown = f"query {query!r}" if query not in queries else f"document {document!r}"
            raise UsageError(f"{folder / names[2]} names {unknown}, which does not exist", fix="Remove the row.")
    if not any(grade > 0 for grade in judged.values()):
        raise UsageError(f"{folder / names[2]} has no judgment above 0", fix="Add relevant documents.")
    return make_collection(folder.resolve().name, documents, queries, judged, shared_ids=beir)


def make_collection(
    name: str, documents: Mapping[str, str], queries: Mapping[str, str], judged: Judgments, shared_ids: bool
) -> Collection:
    """Create a collection from texts by id and grades by query and document id.

    Args:
        shared_ids: Queries and documents share one space of ids, so a document with the id of a query is the query
            itself. It is in no ranking. If it is judged relevant, it counts as not found, as in BEIR.

    Raises:
        UsageError: See `refuse_blank_texts`.
    """
    refuse_blank_texts(name, documents, queries)
    order = in_order(documents)
    index = {document: i for i, document in enumerate(order)}
    grades: dict[str, dict[int, int]] = {}
    for (query, document), grade in judged.items():
        if grade > 0:
            grades.setdefault(query, {})[index[document]] = grade
    if without := len(queries) - len(grades):
        logger.info(f"{name}: {without:,} of {len(queries):,} queries have no relevant document and are left out.")
    if below := sum(grade < 0 for grade in judged.values()):
        logger.info(f"{name}: {counted(below, 'judgment')} below 0, which are not relevant, as in trec_eval.")
    kept = [query for query in queries if query in grades]
    same = np.array([index.get(query, -1) if shared_ids else -1 for query in kept])
    if itself := sum(document in grades[query] for query, document in zip(kept, same)):
        logger.warning(f"{name}: {counted(itself, 'relevant document')} with the id of the query, never found.")
    texts, asked = [documents[document] for document in order], [queries[query] for query in kept]
    right = [grades[query] for query in kept]
    digest = _sha256(asked, texts, [str(sorted(own.items())) for own in right], list(map(str, same)))
    return Collection(name, texts, asked, right, same, digest)


def _sha256(*parts: Sequence[str]) -> str:
    return hashlib.sha256("\0\0".join("\0".join(texts) for texts in parts).encode()).hexdigest()
