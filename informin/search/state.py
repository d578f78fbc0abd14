"""What an index consists of at one moment, and how it ranks."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array, diags_array

from informin.evaluation.words import Words, spread, z_scores
from informin.rows import top
from informin.search.entries import Entries
from informin.search.record import Hit, IndexRecord
from informin.search.table import QueryTable
from informin.search.vectors import Vectors


@dataclass(frozen=True)
class State:
    """The content of an index, which never changes.

    `Index` replaces it as a whole, so that other threads see the old or the new.

    Attributes:
        record: Settings.
        entries: The N texts.
        vectors: (N, d) float16: unit vectors, or those of the model as they are if it is compared by dot product.
        documents: (N, d) float16, the vectors that are searched: `vectors`, adapted or smoothed if the index is.
        words: BM25 weights.
        table: Table that embeds queries; None if the model does.
    """

    record: IndexRecord
    entries: Entries
    vectors: np.ndarray
    documents: np.ndarray
    words: Words
    table: QueryTable | None = None

    @cached_property
    def compared(self) -> Vectors:
        """The documents, prepared for the comparison with queries."""
        return Vectors(self.documents)

    def with_record(self, **changes) -> "State":
        """Return the same content with changes of the record."""
        return replace(self, record=replace(self.record, **changes))

    def find(self, queries: list[str], vectors: np.ndarray, k: int) -> list[list[Hit]]:
        """Return the k best texts for each of Q queries with vectors (Q, d), best first."""
        words = self.words.scores(queries)
        mean, deviation = self.compared.moments(vectors)
        weighted = self.record.word_weight * z_scores(words)
        hits = []
        for query, (places, similarities) in enumerate(self.compared.candidates(vectors, words)):
            scores = (similarities - mean[query]) / deviation[query] + weighted[query, places]
            best = top(scores, min(k, len(scores)))
            places = places[best]
            parts = zip(places, scores[best], similarities[best], words[query, places])
            hits.append([self._hit(*part) for part in parts])
        return hits

    def sparse_queries(self, queries: list[str], vectors: np.ndarray) -> csr_array:
        """Return the words of queries, weighted such that `words.weights()` and `documents` rank as `find` does."""
        counts = self.words.counts(queries)
        words = self.words.scores(queries)
        _, deviation = self.compared.moments(vectors)
        return diags_array((self.record.word_weight * deviation / spread(words))[:, 0]) @ counts

    def _hit(self, place: int, score: float, similarity: float, word_score: float) -> Hit:
        threshold = self.record.threshold
        return Hit(
            row=int(self.entries.rows[place]),
            text=self.entries.texts[place],
            score=float(score),
            vector_score=float(similarity),
            word_score=float(word_score),
            relevant=None if threshold is None else bool(similarity > threshold),
            id=self.entries.ids[place],
            fields=self.entries.fields[place],
        )
