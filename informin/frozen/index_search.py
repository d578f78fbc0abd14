"""The search of an index: which texts are nearest to a query by vectors and BM25, and their order after reranking.

Nothing here needs the model or torch, so that an index with static embeddings of queries starts without them.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_array, diags_array

from informin.errors import is_installed
from informin.evaluation.rows import top
from informin.frozen.bm25 import BM25, NEARLY_EQUAL, spread
from informin.frozen.index_entries import Entries, IndexRecord
from informin.frozen.late_interaction import CANDIDATES, Tokens, TokenVectors, leading_directions
from informin.frozen.static_queries import StaticQueries

COMPARED = 2**24  # numbers, of 43,690 vectors of 384: of fewer, all are compared
IN_MEMORY = 2**28  # numbers: of more, FAISS chooses the candidates, if it is installed
BLOCK = 16_384  # rows converted to float32 at a time
# With these, 99.98% of the first ten hits are found, and 99.9% or more of the first 50 (docs/search.md).
LEADING_DIRECTIONS = 128
MOST_CANDIDATES = 1_000  # at first
MARGIN = 6  # in standard deviations of what the leading directions leave of the similarities to a query
SAMPLED_ROWS = 4_096  # rows that the spread of similarities and the leading directions are computed from
Candidates = tuple[np.ndarray, np.ndarray]  # indices, ascending, and their similarities


@dataclass(frozen=True)
class Hit:
    """A text that was found.

    Attributes:
        row: Number of the text, from 0 in the order in which texts were added.
        text: The text.
        score: The sum that hits are sorted by, in standard deviations.
        vector_score: Cosine of the vectors; their dot product for a model that is compared by it.
        word_score: BM25 score of the words.
        relevant: Whether the cosine is above the threshold, which at most about one unrelated text per query exceeds.
            None without a threshold: if there are fewer than 100 different texts, if the texts form no topics, or if
            the index compares by dot product.
        token_score: In an index that reranks, the mean over the query's tokens of their largest cosine to a token of
            the text, weighted by inverse document frequency. None in another index.
        id: Your own id of the text; None if it was added without one.
        fields: Further values that were added with the text, such as its title, by name.
    """

    row: int
    text: str
    score: float
    vector_score: float
    word_score: float
    relevant: bool | None
    token_score: float | None = None
    id: Any = None
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def shown_fields(self) -> dict[str, Any]:
        """The fields that are not empty."""
        return {name: value for name, value in self.fields.items() if value is not None}


@dataclass(frozen=True)
class State:
    """The content of an index, which never changes.

    `Index` replaces it as a whole, so that other threads see the old or the new.

    Attributes:
        record: Settings.
        entries: The N texts.
        vectors: (N, d) float16: unit vectors, or those of the model as they are if it is compared by dot product.
        documents: (N, d) float16, the vectors that are searched: `vectors`, adapted or smoothed if the index is.
        bm25: BM25 weights of their words.
        static_queries: Static embeddings of queries; None if the model embeds them.
        tokens: Token vectors of the texts, to rerank hits; None for an index that does not.
    """

    record: IndexRecord
    entries: Entries
    vectors: np.ndarray
    documents: np.ndarray
    bm25: BM25
    static_queries: StaticQueries | None = None
    tokens: TokenVectors | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled or copied, without what is computed from it."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def compared(self) -> "Vectors":
        """The documents, prepared for the comparison with queries."""
        return Vectors(self.documents, self.duplicates.first)

    @cached_property
    def duplicates(self) -> "Duplicates":
        """Which texts are equal."""
        return Duplicates(self.entries.texts)

    def with_record(self, **changes) -> "State":
        """Return the same content with changes of the record."""
        return replace(self, record=replace(self.record, **changes))

    def find(
        self, queries: list[str], embedded: "Queries", k: int, where: Mapping[str, Any] | None = None
    ) -> list[list[Hit]]:
        """Return the k best texts for each of Q queries, best first.

        Args:
            queries: Q queries.
            embedded: Their vectors, and their tokens to rerank.
            k: Number of texts, or all if there are fewer.
            where: Values of fields that hits have; see `Entries.having`.
        """
        among = None if where is None else self.entries.having(where)
        if among is not None and not among.any():
            return [[] for _ in queries]
        vectors = embedded.vectors
        words = self.bm25.scores(queries)
        compared = self.compared
        mean, deviation = compared.moments(vectors)
        scale = self.record.word_weight / spread(words)
        typical = words.mean(1)
        added = deviation * scale * words
        firsts = self.duplicates.first_among(among)
        k = min(k, len(self.entries) if among is None else int(among.sum()))
        depth = min(max(k, CANDIDATES) if self.tokens else k, len(firsts))
        found_by_vectors = (
            compared.candidates(vectors, added, depth) if among is None else compared.similarities(vectors, firsts)
        )
        hits = []
        for query, (indices, similarities) in enumerate(found_by_vectors):
            matched = words[query, indices]
            scores = (similarities - mean[query]) / deviation[query] + scale[query] * (matched - typical[query])
            found = _Found(indices, scores, similarities, matched).selected(top(scores, depth))
            if self.tokens:
                found = found.reordered(self.tokens, embedded.tokens[query])
            found = found.with_duplicates(self.duplicates, among)
            hits.append([self._hit(found, rank) for rank in range(k)])
        return hits

    def sparse_queries(self, queries: list[str], vectors: np.ndarray) -> csr_array:
        """Return the words of queries, weighted such that `bm25.weights()` and `documents` rank as `find` does."""
        counts = self.bm25.counts(queries)
        words = self.bm25.scores(queries)
        _, deviation = self.compared.moments(vectors)
        return diags_array((self.record.word_weight * deviation / spread(words))[:, 0]) @ counts

    def _hit(self, found: "_Found", rank: int) -> Hit:
        index = found.indices[rank]
        similarity = float(found.similarities[rank])
        threshold = self.record.threshold
        return Hit(
            row=int(self.entries.rows[index]),
            text=self.entries.texts[index],
            score=float(found.scores[rank]),
            vector_score=similarity,
            word_score=float(found.words[rank]),
            relevant=None if threshold is None else similarity > threshold,
            token_score=None if found.tokens is None else float(found.tokens[rank]),
            id=deepcopy(self.entries.ids[index]),  # a caller may change what it gets
            fields=deepcopy(self.entries.fields[index]),
        )


@dataclass(frozen=True)
class Queries:
    """Q queries as the model sees them.

    Attributes:
        vectors: (Q, d) float32.
        tokens: For each query, ids and projected vectors of its tokens; empty for an index that does not rerank.
    """

    vectors: np.ndarray
    tokens: Sequence[Tokens] = ()

    def __getitem__(self, part: slice) -> "Queries":
        return Queries(self.vectors[part], self.tokens[part])


@dataclass(frozen=True)
class _Found:
    """The indices of P texts that were found for a query, and their scores (P,)."""

    indices: np.ndarray
    scores: np.ndarray
    similarities: np.ndarray
    words: np.ndarray
    tokens: np.ndarray | None = None

    def selected(self, order: np.ndarray) -> "_Found":
        """Return some of the texts, in the order of their indices."""
        tokens = None if self.tokens is None else self.tokens[order]
        return _Found(self.indices[order], self.scores[order], self.similarities[order], self.words[order], tokens)

    def reordered(self, stored: TokenVectors, query: Tokens) -> "_Found":
        """Return the texts reranked by their tokens."""
        tokens, added = stored.rerank(query, self.indices)
        found = replace(self, scores=self.scores + added, tokens=tokens)
        return found.selected(np.argsort(-found.scores, kind="stable"))

    def with_duplicates(self, duplicates: "Duplicates", among: np.ndarray | None) -> "_Found":
        """Return each text with its duplicates after it, which have its scores; only those `among` (N,), if given."""
        indices = [duplicates.of(first) for first in self.indices]
        if among is not None:
            indices = [each[among[each]] for each in indices]
        same = np.repeat(np.arange(len(indices)), [len(one) for one in indices])
        return replace(self.selected(same), indices=np.concatenate(indices))


class Duplicates:
    """Which of N texts are equal.

    Attributes:
        first: (M,) indices of the first of the duplicates of each of M different texts, ascending.
    """

    def __init__(self, texts: Sequence[str]):
        first_of: dict[str, int] = {}
        self._firsts = np.array([first_of.setdefault(text, index) for index, text in enumerate(texts)], int)
        self.first = np.array(list(first_of.values()), int)
        self._numbers = np.bincount(self._firsts, minlength=len(texts))  # of duplicates, at the index of the first one
        self._ends = np.cumsum(self._numbers)
        self._indices = np.argsort(self._firsts, kind="stable")  # those of the duplicates of a text follow each other

    def first_among(self, among: np.ndarray | None) -> np.ndarray:
        """Return `first`, or of it only those with a duplicate among some texts, given by booleans (N,)."""
        return self.first if among is None else np.unique(self._firsts[among])

    def of(self, first: int) -> np.ndarray:
        """Return the indices of all duplicates of a text, ascending."""
        end = self._ends[first]
        return self._indices[end - self._numbers[first] : end]


class Vectors:
    """Document vectors to compare with queries by dot product.

    Args:
        documents: (N, d) float16, usually memory-mapped.
        compared: (M,) indices of the documents that are compared, ascending.
    """

    def __init__(self, documents: np.ndarray, compared: np.ndarray):
        self.documents = np.asarray(documents)  # without the class of memory maps, whose rows take longer to read
        self.compared = compared
        sampled = np.unique(np.linspace(0, len(documents) - 1, SAMPLED_ROWS).astype(int))
        sample = self.documents[sampled].astype(np.float32)
        self.center = sample.mean(0)  # (d,)
        self.deviations = np.linalg.qr(sample - self.center, mode="r") / len(sample) ** 0.5  # (at most d, d)
        numbers = len(compared) * documents.shape[1]
        self.whole = self._converted() if numbers <= COMPARED else None
        self.faiss: Any = self._faiss_index() if numbers > IN_MEMORY and is_installed("faiss") else None
        if self.whole is None and self.faiss is None:
            self.directions = leading_directions(sample, LEADING_DIRECTIONS)  # (d, k)
            self.leading = self._converted(self.directions)  # (M, k)
            self.rest = np.eye(len(self.center), dtype=np.float32) - self.directions @ self.directions.T  # (d, d)
            self.rest_deviations = self.deviations @ self.rest  # (at most d, d)

    def moments(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation (Q, 1) of the similarities of queries (Q, d) to the documents.

        The deviation is 1 where the similarities are equal up to rounding.
        """
        mean = (queries @ self.center)[:, None]
        # The length of R q is the length of S q for a sample S = Q R, and R has few rows.
        deviation = np.linalg.norm(queries @ self.deviations.T, axis=1, keepdims=True)
        return mean, np.where(deviation > NEARLY_EQUAL * np.abs(mean), deviation, 1)

    def candidates(self, queries: np.ndarray, added: np.ndarray, k: int) -> Iterator[Candidates]:
        """Yield for each query the indices of documents that may be hits, ascending, and their similarities.

        Args:
            queries: (Q, d) float32.
            added: (Q, N) what BM25 adds to the similarities.
            k: Number of hits.
        """
        if self.whole is not None:
            yield from ((self.compared, similarities) for similarities in queries @ self.whole.T)
            return
        if len(self.compared) < len(self.documents):
            added = added[:, self.compared]
        depth = min(max(MOST_CANDIDATES, 10 * k), len(self.compared))
        if self.faiss is not None:
            found = self.faiss.search(queries, depth)[1]
            for query, numbers, more in zip(queries, found, added):
                nearest = np.union1d(numbers, top(more, depth))
                yield self.compared[nearest], self._similarities(query, nearest)
            return
        margins = self._margins(queries)
        leading = queries @ self.directions @ self.leading.T
        leading += added
        for query, scores, more, margin in zip(queries, leading, added, margins):
            yield self._by_leading(query, scores, more, margin, k, depth)

    def similarities(self, queries: np.ndarray, indices: np.ndarray) -> Iterator[Candidates]:
        """Yield for each query (d,) the indices (P,) that are given, ascending, and their similarities."""
        blocks = [indices[start : start + BLOCK] for start in range(0, len(indices), BLOCK)]
        products = [queries @ as_float32(self.documents[block]).T for block in blocks]
        yield from ((indices, similarities) for similarities in np.concatenate(products, axis=1))

    def _margins(self, queries: np.ndarray) -> np.ndarray:
        """Return how much higher a similarity (Q,) may be than what the leading directions make of it.

        For a query q and the projection P on the other directions, q P d has a mean and a standard deviation over the
        documents d.
        """
        deviation = np.linalg.norm(queries @ self.rest_deviations.T, axis=1)
        return queries @ (self.rest @ self.center) + MARGIN * deviation

    def _by_leading(
        self, query: np.ndarray, leading: np.ndarray, added: np.ndarray, margin: float, k: int, depth: int
    ) -> Candidates:
        """Return the indices of documents that may be hits of a query, ascending, and their similarities.

        The k-th best score of the first candidates is a bound. Every document that may exceed it is a candidate, too:
        hundreds if many are nearly equal, and most if the leading directions say little about the others.

        Args:
            query: (d,) float32.
            leading: (M,) scores by the leading directions.
            added: (M,) what BM25 adds to the similarities.
            margin: How much higher the score of a document may be than that by the leading directions.
            k: Number of hits.
            depth: Number of candidates at first.
        """
        nearest = np.sort(top(leading, depth))
        similarities = self._similarities(query, nearest)
        if depth < len(leading):
            scores = similarities + added[nearest]
            least = np.partition(scores, -k)[-k]
            possible = np.flatnonzero(leading >= least - margin)
            if len(possible) > depth:
                nearest = possible
                similarities = self._similarities(query, nearest)
        return self.compared[nearest], similarities

    def _similarities(self, query: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return the similarities of a query (d,) to documents, given by numbers in `compared`."""
        return as_float32(self.documents[self.compared[numbers]]) @ query

    def _blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield slices of `compared` and the documents there in float32."""
        for start in range(0, len(self.compared), BLOCK):
            part = slice(start, start + BLOCK)
            yield part, as_float32(self.documents[self.compared[part]])

    def _converted(self, directions: np.ndarray | None = None) -> np.ndarray:
        """Return the documents in float32 (M, d), or their coordinates (M, k) in some directions (d, k).

        Columns are contiguous, which halves the time of a product with one query.
        """
        width = self.documents.shape[1] if directions is None else directions.shape[1]
        converted = np.empty((len(self.compared), width), np.float32, order="F")
        for part, block in self._blocks():
            converted[part] = block if directions is None else block @ directions
        return converted

    def _faiss_index(self) -> Any:
        """Return an exact FAISS index that holds the vectors as float16."""
        import faiss

        kind = faiss.ScalarQuantizer.QT_fp16
        index = faiss.IndexScalarQuantizer(self.documents.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
        index.is_trained = True
        for _, block in self._blocks():
            index.add(block)
        return index


def as_float32(halves: np.ndarray) -> np.ndarray:
    """Return finite float16 numbers as float32, in a quarter of the time of `astype`."""
    bits = halves.view(np.int16).astype(np.int32)  # repeats the sign in the upper half
    bits <<= 13  # exponent and fraction are where float32 has them
    bits &= ~0x70000000  # keeps one of the repeated signs
    numbers = bits.view(np.float32)
    numbers *= 2.0 ** (127 - 15)  # the difference between the biases of the two exponents
    return numbers
