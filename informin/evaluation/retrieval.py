"""Collections of documents, queries and grades, from a file of pairs or a folder in BEIR's layout or of TSV."""

import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from informin.errors import UndefinedScoreError, UsageError, counted
from informin.evaluation.encode import Encode, embed_once, unit
from informin.evaluation.measures import SEARCH, Measure
from informin.evaluation.rows import top
from informin.files import last_name
from informin.texts import Cells, as_number, as_sentence, is_blank, read_rows

logger = logging.getLogger(__name__)


# Scores of rankings

TRIALS = 10_000
SIGNS = 2**20  # at a time: 8 MiB, and as much for drawing them


def per_query_scores(grades: np.ndarray, ideal: np.ndarray) -> dict[str, np.ndarray]:
    """Return the scores x 100 of Q queries, each with at least one relevant document.

    Args:
        grades: Grades (Q, K) of the first K documents retrieved for each query, in order. K is 100, or the number of
            documents if there are fewer.
        ideal: Grades (Q, R) of all relevant documents of each query in descending order, padded with 0.

    Returns:
        For each metric (Q,):

        * `mrr_10`: 1 / rank of the first relevant document, or 0 beyond rank 10.
        * `ndcg_10`: discounted cumulative gain divided by that of the best order; gain is the grade, discount
          log2(rank + 1).
        * `map_100`: average precision: the sum of the precision at each relevant document among the first 100, divided
          by the number of relevant documents.
        * `recall_10`, `recall_100`: fraction of the relevant documents that are among the first k.
        * `accuracy_1`, `accuracy_10`: whether a relevant document is among the first k.

    Source:
        As in trec_eval: recip_rank, ndcg_cut, map_cut, recall, success. Järvelin & Kekäläinen (2002) for nDCG.
    """
    hits = grades > 0  # (Q, K), (Q,)
    total = (ideal > 0).sum(1)
    relevant = hits.cumsum(1)  # (Q, K), relevant documents up to each rank
    rank = np.arange(1, grades.shape[1] + 1)
    scores = {
        "mrr_10": (hits / rank)[:, :10].max(1),
        "ndcg_10": _discounted_gain(grades[:, :10]) / _discounted_gain(ideal[:, :10]),
        "map_100": (hits * relevant / rank)[:, :100].sum(1) / total,
        **{f"recall_{k}": hits[:, :k].sum(1) / total for k in (10, 100)},
        **{f"accuracy_{k}": hits[:, :k].any(1) for k in (1, 10)},
    }
    return {name: 100 * values.astype(float) for name, values in scores.items()}


def _discounted_gain(grades: np.ndarray) -> np.ndarray:
    """Return the sum over ranks of grade / log2(rank + 1) (Q,), for grades (Q, K)."""
    return (grades / np.log2(np.arange(2, grades.shape[1] + 2))).sum(1)


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
    source = np.random.default_rng(seed)
    step = max(1, SIGNS // len(differences))
    least = abs(differences.sum()) - 1e-9
    above = 0
    for start in range(0, TRIALS, step):
        signs = source.choice([-1.0, 1.0], size=(min(step, TRIALS - start), len(differences)))
        above += int((np.abs(signs @ differences) >= least).sum())
    return (1 + above) / (1 + TRIALS)


# Ids, texts and grades in files

OPTION = "retrieval"
GRADES = ("relevance", "score")  # columns
# Other names for a grade. A file with one of them and none of `GRADES` would be read as if every row were relevant.
LIKE_GRADES = ("grade", "grades", "label", "labels", "rel", "gain", "judgment", "judgement", "rating", *GRADES)
HIGHEST = 1000
Judgments = dict[tuple[str, str], int]  # grades by the ids of query and document; 0 or less is not relevant


def read_by_id(path: Path, key: str) -> dict[str, str]:
    """Return the texts of documents or queries by id, each with its title in front if it has one.

    Args:
        key: Column of the ids. The texts are in `text`, and titles in the optional column `title`.

    Raises:
        UsageError: A column or an id is missing, an id occurs twice, or a text is not a string.
    """
    texts: dict[str, str] = {}
    for row in read_rows(path, (key, "text"), OPTION, optional=("title",)):
        name = identifier(row, key)
        if name in texts:
            raise UsageError(f"{row.place}: the id {name!r} occurs twice", fix="Remove one of the rows.")
        parts = [part for part in (row["title"], row["text"]) if part is not None]
        if not all(isinstance(part, str) for part in parts):
            raise UsageError(f"{row.place}: the text of {name!r} is {parts!r:.60}", needed="text")
        texts[name] = " ".join(parts)
    return texts


def read_judgments(path: Path, query: str, document: str) -> Judgments:
    """Return the judgments of a file; see `grade_in`.

    Args:
        query, document: Names of the columns with the ids.

    Raises:
        UsageError: A column or an id is missing, or a grade contradicts an earlier one; or as `grade_in`.
    """
    judged: Judgments = {}
    for row in read_rows(path, (query, document), OPTION):
        pair = identifier(row, query), identifier(row, document)
        judge(judged, pair, grade_in(row, [name for name in row if name not in (query, document)]), row.place)
    return judged


def judge(judged: Judgments, pair: tuple[str, str], grade: int, place: str) -> None:
    """Add the grade of a query and a document. Raises UsageError if it is NaN or contradicts an earlier one.

    Args:
        place: The file and the line, for the error.
    """
    if judged.setdefault(pair, grade) != grade:  # also NaN
        raise UsageError(f"{place}: {' and '.join(map(repr, pair))} have the grades {judged[pair]} and {grade}")


def identifier(row: Cells, column: str) -> str:
    """Return an id as text. Raises UsageError if it is missing."""
    if row[column] is None:
        raise UsageError(f"{row.place} has no id", needed="ids in every row")
    return name_in(row[column])


def name_in(cell: Any) -> str:
    """Return an id or a label as text; the numbers 3 and 3.0 of JSON are "3"."""
    return str(int(cell) if isinstance(cell, float) and cell.is_integer() else cell)


def grade_in(row: Cells, others: Iterable[str]) -> int:
    """Return the grade of a row, from the column `relevance` or `score`; 1 if the file has neither.

    As in trec_eval, grades of 0 and below are not relevant.

    Args:
        others: Further columns that may contain the grades.

    Raises:
        UsageError: The grade is missing or is not a whole number from -1,000 to 1,000, the two columns contradict each
            other, or another column may contain the grades.
    """
    columns = [name for name in GRADES if name in row]
    if not columns:
        if unread := [name for name in others if name]:
            raise UsageError(
                f"{row.place}: the column {unread[0]!r} is not read",
                needed="grades in a column relevance or score",
                fix="Rename the column, or remove it if every row is a relevant document.",
            )
        return 1
    grades = {as_number(row, name) for name in columns if row[name] is not None}
    if len(grades) != 1 or not all(grade.is_integer() and abs(grade) <= HIGHEST for grade in grades):
        cells = ", ".join(f"{name} {row[name]}" for name in columns)
        raise UsageError(f"{row.place}: found {cells}", needed=f"one whole number from -{HIGHEST:,} to {HIGHEST:,}")
    return int(grades.pop())


def check_texts(name: str, documents: Mapping[str, str], queries: Mapping[str, str]) -> None:
    """Raise UsageError if a query or most documents have no text. A message says how many documents have none."""
    if blank := [query for query, text in queries.items() if is_blank(text)]:
        raise UsageError(f"{name}: the query {blank[0]!r} has no text", fix="Remove the query and its judgments.")
    if empty := sum(map(is_blank, documents.values())):
        message = f"{name}: {empty:,} of {counted(len(documents), 'document')} have no text"
        if 2 * empty > len(documents):
            raise UsageError(message, fix="Check the column `text`.")
        logger.warning(f"{message}.")


def in_order(identifiers: Iterable[str]) -> list[str]:
    """Return ids in an order that does not depend on the file: by text, with numbers by value, so d2 before d10."""
    return sorted(identifiers, key=lambda name: ([_number(part) for part in re.split("([0-9]+)", name)], name))


def _number(part: str) -> tuple[int, str]:
    """Return a key in which digits compare by value. No number is computed: an id can have thousands of digits."""
    digits = part.lstrip("0")
    return (len(digits), digits) if part.isdecimal() else (0, part)


# Collections

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

        Raises:
            UsageError: The numbers of texts and grades differ, a grade is NaN, or one contradicts an earlier one.
        """
        negatives = [] if negatives is None else negatives
        grades = [1] * len(queries) if relevance is None else relevance
        if not len(queries) == len(documents) == len(grades):
            found = f"{name} has queries, documents and grades of different numbers"
            raise UsageError(found, needed="a query, a document and a grade per row")
        pool = sorted({*documents, *negatives})  # the order decides ties: negatives must not be last
        index = {document: i for i, document in enumerate(pool)}
        answers: dict[str, dict[int, int]] = {}
        judged: Judgments = {}
        for row, (query, document, grade) in enumerate(zip(queries, documents, grades)):
            judge(judged, (query, document), grade, f"{name}, row {row}")
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
        embedding = embed_once(encode, self.texts())
        ranking = self.rank(embedding(self.queries), embedding(self.documents))
        return {name: float(values.mean()) for name, values in self.scores(ranking).items()}

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
        self, queries: np.ndarray, documents: np.ndarray, depth: int = DEPTH, similarity: Similarity | None = None
    ) -> np.ndarray:
        """Rank documents by their similarity to each query.

        Args:
            queries: Embeddings (Q, d) of the queries.
            documents: Embeddings (D, d) of the documents.
            depth: Number of documents to rank.
            similarity: Function from embeddings (Q, d) and (D, d) to similarities (Q, D), such as the `similarity` of a
                SentenceTransformer; None for the cosine.

        Returns:
            (Q, K) indices as `highest`.
        """
        ranking = np.empty((len(queries), min(depth, len(documents))), dtype=np.int64)
        for part, scores in self.similarities(queries, documents, similarity):
            ranking[part] = self.highest(part, scores, depth)
        return ranking

    def similarities(
        self, queries: np.ndarray, documents: np.ndarray, similarity: Similarity | None = None
    ) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield which queries are compared, in parts that limit the memory, and their similarities (q, D) float32.

        Args:
            queries, documents, similarity: See `rank`.
        """
        if similarity is None:
            queries, documents = (unit(x).astype(np.float32) for x in (queries, documents))
            similarity = _dot
        step = max(1, PAIRS_AT_ONCE // len(documents))
        for start in range(0, len(queries), step):
            part = slice(start, start + step)
            yield part, np.array(similarity(queries[part], documents), np.float32)

    def highest(self, part: slice, scores: np.ndarray, depth: int) -> np.ndarray:
        """Return the documents with the highest scores. A document that is the query itself is left out.

        Scores that differ by less than 10^-6 of the highest one are equal, and ties keep the order of documents.

        Args:
            part: Which queries.
            scores: (q, D) their scores of all documents.
            depth: Number of documents to rank.

        Returns:
            (q, K) indices, best first; K is the smaller of `depth` and D. -1 comes last where there are fewer.
        """
        largest = np.abs(scores).max(1, keepdims=True)
        rounded = (scores / np.where(largest == 0, 1, ROUNDING * largest)).round()
        ranking = np.empty((len(scores), min(depth, scores.shape[1])), dtype=np.int64)
        for row, (values, same) in enumerate(zip(rounded, self.same[part])):
            if same >= 0:
                values[same] = -np.inf
            ranking[row] = top(values, ranking.shape[1])
        return ranking


# Loading of collections


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
    return collection_of_rows(read_rows(path, PAIR_COLUMNS, option), last_name(path), str(path), option)


def collection_of_rows(rows: Iterable[Cells], name: str, source: str, option: str) -> Collection:
    """Return the test collection in the rows of a table; see `load_retrieval_pairs`.

    Args:
        name: Name in tables.
        source: Where the rows come from, for messages.
    """
    negatives = []
    judged: Judgments = {}
    for row in rows:
        pair = as_sentence(row, "query"), as_sentence(row, "document")
        others = [column for column in row if column.strip().lower() in LIKE_GRADES]
        judge(judged, pair, grade_in(row, others), row.place)
        if row.get("negative") is not None:
            negatives.append(as_sentence(row, "negative"))
    queries = [query for query, _ in judged]
    documents = [document for _, document in judged]
    collection = Collection.of_pairs(name, queries, documents, negatives, list(judged.values()))
    if not collection.queries:
        raise UsageError(f"{source} has no relevant document", option=option)
    if without := len(set(queries)) - len(collection.queries):
        logger.warning(f"{source}: {without:,} of {len(set(queries)):,} queries have no relevant document.")
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
