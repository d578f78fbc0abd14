"""Retrieval test collections: documents, queries and graded judgments, in BEIR's layout or as TSV."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from informin.errors import UsageError
from informin.evaluation.ranking import per_query_scores
from informin.evaluation.table_files import as_number, rows_by_column

logger = logging.getLogger(__name__)

DEPTH = 100  # documents ranked for each query
BLOCK = 2**24  # cosines at a time: 64 MiB
OPTION = "retrieval"
BEIR = ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv")
TSV = ("corpus.tsv", "queries.tsv", "qrels.tsv")


@dataclass(frozen=True)
class Collection:
    """A test collection.

    Attributes:
        name: Name of its folder.
        documents: Texts of the D documents.
        queries: Texts of the Q queries that have a relevant document.
        grades: For each query the grades, above 0, of its relevant documents, by index.
        same: For each query the index of the document with the same id, which is not searched, or -1.
    """

    name: str
    documents: list[str]
    queries: list[str]
    grades: list[dict[int, int]]
    same: np.ndarray

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

    def rank(self, queries: np.ndarray, documents: np.ndarray, depth: int = DEPTH) -> np.ndarray:
        """Rank documents by dot product; ties keep their order.

        Args:
            queries: (Q, d) unit vectors.
            documents: (D, d) unit vectors.
            depth: Number of documents to rank.

        Returns:
            (Q, K) indices, best first; K is the smaller of `depth` and D.
        """
        cut, step = min(depth, len(documents)), max(1, BLOCK // len(documents))
        ranking = np.empty((len(queries), cut), dtype=np.int64)
        for start in range(0, len(queries), step):
            block = (queries[start : start + step] @ documents.T).round(6)  # equal vectors differ in their last bits
            for row, similarity in enumerate(block, start=start):
                if self.same[row] >= 0:
                    similarity[self.same[row]] = -np.inf
                ranking[row] = top(similarity, cut)
        return ranking


def top(similarity: np.ndarray, k: int) -> np.ndarray:
    """Return the indices of the k highest values of (N,), highest first; ties by index."""
    least = np.partition(similarity, len(similarity) - k)[len(similarity) - k]
    candidates = np.flatnonzero(similarity >= least)
    return candidates[np.argsort(-similarity[candidates], kind="stable")][:k]


def load_collection(folder: str | Path) -> Collection:
    """Load a test collection from a folder.

    * BEIR: `corpus.jsonl` (`_id`, `text`, optionally `title`), `queries.jsonl` (`_id`, `text`) and `qrels/test.tsv`
      (`query-id`, `corpus-id`, `score`).
    * TSV with header lines: `corpus.tsv` and `queries.tsv` (`id`, `text`) and `qrels.tsv` (`query`, `document` and
      optionally `score`).

    Raises:
        UsageError: A file is missing or damaged, an id occurs twice, a judgment names an unknown id, or no document is
            relevant to any query.
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
    documents = _texts(folder / names[0], "_id" if beir else "id")
    queries = _texts(folder / names[1], "_id" if beir else "id")
    judged = _judgments(folder / names[2], *(("query-id", "corpus-id") if beir else ("query", "document")))
    for query, document in judged:
        if query not in queries or document not in documents:
            unknown = f"query {query!r}" if query not in queries else f"document {document!r}"
            raise UsageError(f"{folder / names[2]} names {unknown}, which does not exist", fix="Remove the row.")
    if not any(grade > 0 for grade in judged.values()):
        raise UsageError(f"{folder / names[2]} has no judgment above 0", fix="Add relevant documents.")
    return make_collection(folder.resolve().name, documents, queries, judged, shared_ids=beir)


def make_collection(
    name: str,
    documents: Mapping[str, str],
    queries: Mapping[str, str],
    judged: Mapping[tuple[str, str], int],
    shared_ids: bool,
) -> Collection:
    """Create a collection from texts by id and grades by query and document id.

    Args:
        shared_ids: Queries and documents share one space of ids, so a document with the id of a query is the query
            itself.
    """
    index = {document: i for i, document in enumerate(documents)}
    grades: dict[str, dict[int, int]] = {}
    for (query, document), grade in judged.items():
        if grade > 0:
            grades.setdefault(query, {})[index[document]] = grade
    if without := len(queries) - len(grades):
        logger.info(f"{name}: {without:,} of {len(queries):,} queries have no relevant document and are left out.")
    kept = [query for query in queries if query in grades]
    same = np.array([index.get(query, -1) if shared_ids else -1 for query in kept])
    return Collection(name, list(documents.values()), [queries[n] for n in kept], [grades[n] for n in kept], same)


def _texts(path: Path, key: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, record in rows_by_column(path, OPTION, (key,)):
        name, parts = str(record[key]), [record.get("title"), record.get("text")]
        if name in found:
            raise UsageError(f"{path}, line {number}: the id {name!r} occurs twice", fix="Remove one of the rows.")
        found[name] = " ".join(part for part in parts if isinstance(part, str) and part.strip())
    if not found:
        raise UsageError(f"{path} has no rows", needed="one row or more")
    return found


def _judgments(path: Path, query: str, document: str) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for number, record in rows_by_column(path, OPTION, (query, document)):
        grade = 1.0 if record.get("score") in (None, "") else as_number(record["score"], "score", path, number)
        found[str(record[query]), str(record[document])] = int(grade)
    return found
