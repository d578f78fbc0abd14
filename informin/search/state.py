"""What an index consists of at one moment, and how it ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_array, diags_array

from informin.evaluation.tokens import CANDIDATES, Tokens, TokenVectors
from informin.evaluation.words import Words, spread
from informin.rows import top
from informin.search.copies import Copies
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
        tokens: Token vectors of the texts, for a second look; None for an index without one.
    """

    record: IndexRecord
    entries: Entries
    vectors: np.ndarray
    documents: np.ndarray
    words: Words
    table: QueryTable | None = None
    tokens: TokenVectors | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled or copied, without what is computed from it."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def compared(self) -> Vectors:
        """The documents, prepared for the comparison with queries."""
        return Vectors(self.documents, self.copies.first)

    @cached_property
    def copies(self) -> Copies:
        """Which texts are equal."""
        return Copies(self.entries.texts)

    def with_record(self, **changes) -> "State":
        """Return the same content with changes of the record."""
        return replace(self, record=replace(self.record, **changes))

    def find(self, queries: list[str], embedded: "Queries", k: int) -> list[list[Hit]]:
        """Return the k best texts for each of Q queries, best first.

        Args:
            queries: Q queries.
            embedded: Their vectors, and their tokens for a second look.
            k: Number of texts, or all if there are fewer.
        """
        vectors = embedded.vectors
        words = self.words.scores(queries)
        mean, deviation = self.compared.moments(vectors)
        scale = self.record.word_weight / spread(words)
        typical = words.mean(1)
        added = deviation * scale * words
        k = min(k, len(self.entries))
        depth = min(max(k, CANDIDATES) if self.tokens else k, len(self.copies.first))
        hits = []
        for query, (places, similarities) in enumerate(self.compared.candidates(vectors, added, depth)):
            matched = words[query, places]
            scores = (similarities - mean[query]) / deviation[query] + scale[query] * (matched - typical[query])
            found = _Found(places, scores, similarities, matched).selected(top(scores, depth))
            if self.tokens:
                found = found.reordered(self.tokens, embedded.tokens[query])
            found = found.with_copies(self.copies)
            hits.append([self._hit(found, rank) for rank in range(k)])
        return hits

    def sparse_queries(self, queries: list[str], vectors: np.ndarray) -> csr_array:
        """Return the words of queries, weighted such that `words.weights()` and `documents` rank as `find` does."""
        counts = self.words.counts(queries)
        words = self.words.scores(queries)
        _, deviation = self.compared.moments(vectors)
        return diags_array((self.record.word_weight * deviation / spread(words))[:, 0]) @ counts

    def _hit(self, found: "_Found", rank: int) -> Hit:
        place = found.places[rank]
        similarity = float(found.similarities[rank])
        threshold = self.record.threshold
        return Hit(
            row=int(self.entries.rows[place]),
            text=self.entries.texts[place],
            score=float(found.scores[rank]),
            vector_score=similarity,
            word_score=float(found.words[rank]),
            relevant=None if threshold is None else similarity > threshold,
            token_score=None if found.tokens is None else float(found.tokens[rank]),
            id=self.entries.ids[place],
            fields=self.entries.fields[place],
        )


@dataclass(frozen=True)
class Queries:
    """Q queries as the model sees them.

    Attributes:
        vectors: (Q, d) float32.
        tokens: For each query, ids and projected vectors of its tokens; empty for an index without a second look.
    """

    vectors: np.ndarray
    tokens: Sequence[Tokens] = ()

    def __getitem__(self, part: slice) -> "Queries":
        return Queries(self.vectors[part], self.tokens[part])


@dataclass(frozen=True)
class _Found:
    """The places of P texts that were found for a query, and their scores (P,)."""

    places: np.ndarray
    scores: np.ndarray
    similarities: np.ndarray
    words: np.ndarray
    tokens: np.ndarray | None = None

    def selected(self, order: np.ndarray) -> "_Found":
        """Return some of the texts, in the order of their indices."""
        tokens = None if self.tokens is None else self.tokens[order]
        return _Found(self.places[order], self.scores[order], self.similarities[order], self.words[order], tokens)

    def reordered(self, stored: TokenVectors, query: Tokens) -> "_Found":
        """Return the texts with the scores of a second look, in their order."""
        tokens, added = stored.second_look(query, self.places)
        found = replace(self, scores=self.scores + added, tokens=tokens)
        return found.selected(np.argsort(-found.scores, kind="stable"))

    def with_copies(self, copies: Copies) -> "_Found":
        """Return each text with its copies after it, which have its scores."""
        places = [copies.of(first) for first in self.places]
        same = np.repeat(np.arange(len(places)), [len(one) for one in places])
        return replace(self.selected(same), places=np.concatenate(places))
