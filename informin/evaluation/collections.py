"""Retrieval test collections: documents, queries and graded judgments, in BEIR's layout or as TSV."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from informin.errors import UsageError, counted
from informin.evaluation.collection_files import (
    OPTION,
    Judgments,
    in_order,
    read_judgments,
    read_texts,
    refuse_blank_texts,
)
from informin.evaluation.ranking import per_query_scores, top
from informin.evaluation.similarity import COSINE, similarities, smallest_difference

logger = logging.getLogger(__name__)

DEPTH = 100  # documents ranked for each query
BLOCK = 2**24  # similarities at a time: 64 MiB
BEIR = ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv")
TSV = ("corpus.tsv", "queries.tsv", "qrels.tsv")


@dataclass(frozen=True)
class Collection:
    """A test collection.

    Attributes:
        name: Name of its folder.
        documents: Texts of the D documents, in an order that does not depend on the file, because it decides ties.
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
        cut, step = min(depth, len(documents)), max(1, BLOCK // len(documents))
        ranking = np.empty((len(queries), cut), dtype=np.int64)
        smallest = smallest_difference(similarity, queries, documents)
        for start in range(0, len(queries), step):
            block = (similarities(similarity, queries[start : start + step], documents) / smallest).round()
            for row, values in enumerate(block, start=start):
                if self.same[row] >= 0:
                    values[self.same[row]] = -np.inf
                ranking[row] = top(values, cut)
        return ranking


def load_collection(folder: str | Path) -> Collection:
    """Load a test collection from a folder.

    * BEIR: `corpus.jsonl` (`_id`, `text`, optionally `title`), `queries.jsonl` (`_id`, `text`) and `qrels/test.tsv`
      (`query-id`, `corpus-id`, `score`).
    * TSV with header lines: `corpus.tsv` and `queries.tsv` (`id`, `text`, optionally `title`) and `qrels.tsv` (`query`,
      `document` and optionally `score`).

    In both, the grades can also be in a column `relevance`.

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
    texts = [documents[document] for document in order]
    return Collection(name, texts, [queries[n] for n in kept], [grades[n] for n in kept], same)
