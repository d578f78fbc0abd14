"""Search sentences with one or two models, and say how the second one changes the ranks.

search = Search(sentences, [SearchModel("before", encoder, vectors), SearchModel("after", other, other_vectors)])
for results in search("how are journals cited?"):
    print(results.model, [(hit.rank, hit.other_rank, hit.text) for hit in results.hits])
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

import numpy as np

from informin.adapters.scores import unrelated_scores
from informin.demo.index import MOST_EXACT, Ranking, make_index, rows_of, scaled_rows
from informin.errors import UsageError
from informin.evaluation.similarity import COSINE, prepared
from informin.labeled_sentences import Sentences
from informin.models.model import Model
from informin.textfiles import MOST_CHARACTERS

HITS = 10
HALF = re.compile("[\ud800-\udfff]")  # half of a surrogate pair, which no tokenizer takes


@dataclass(frozen=True)
class SearchModel:
    """A model with the embeddings of the sentences.

    Attributes:
        name: Name shown on the page.
        encoder: An encoder of queries with one pooling.
        vectors: (M, d), one row per sentence of the file, of any length.
        measure: One of `informin.evaluation.similarity.SIMILARITIES`.
    """

    name: str
    encoder: Model
    vectors: np.ndarray
    measure: str = COSINE


@dataclass(frozen=True)
class Hit:
    """A sentence that was found.

    Attributes:
        rank: From 1.
        similarity: Similarity of its embedding to the query's.
        other_rank: Rank by the other model; None if there is no other, or if it is too far to be known.
        columns: Cells of the other columns of the file, such as an id, by name.
    """

    text: str
    label: str
    rank: int
    similarity: float
    other_rank: int | None = None
    columns: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """What one model found.

    Attributes:
        model: Name of the model.
        hits: Nearest first.
        truncated: The query was longer than the model's maximum length.
        measure: The similarity: cosine, or what else the model declares.
        threshold: Cosine above which about one unrelated sentence is expected; None if it is unknown.
    """

    model: str
    hits: list[Hit]
    truncated: bool = False
    measure: str = COSINE
    threshold: float | None = None

    @property
    def nothing_relevant(self) -> bool:
        """Whether no sentence is more similar than one unrelated sentence is expected to be."""
        return self.threshold is not None and all(hit.similarity < self.threshold for hit in self.hits)


class Search:
    """Searches distinct sentences with each of the models.

    Args:
        sentences: The sentences of the file. Repeated ones are found once.
        models: One or two models.
        most_exact: See `make_index`.
    """

    def __init__(self, sentences: Sentences, models: Sequence[SearchModel], most_exact: int = MOST_EXACT):
        rows = sentences.distinct()
        self.sentences = sentences.take(rows)
        self.models = list(models)
        self._guard = Lock()  # a page may ask from several threads, and a tokenizer serves one at a time
        self.vectors = [scaled_rows(model.vectors, rows) for model in models]  # (N, d) each
        self._indices = [
            make_index(vectors if one.measure == COSINE else rows_of(one.vectors, rows), most_exact, one.measure)
            for one, vectors in zip(self.models, self.vectors)
        ]
        self.thresholds = [
            _threshold(vectors) if one.measure == COSINE else None for one, vectors in zip(self.models, self.vectors)
        ]

    def __len__(self) -> int:
        """Return the number of distinct sentences."""
        return len(self.sentences.texts)

    def __call__(self, query: str, hits: int = HITS) -> list[Results]:
        """Return the nearest sentences for each model.

        Raises:
            UsageError: The query is too long to tokenize or not valid Unicode, or its embedding is not finite.
        """
        if len(query) > MOST_CHARACTERS:
            found = f"The query has {len(query):,} characters"
            raise UsageError(found, needed=f"up to {MOST_CHARACTERS:,}", fix="Shorten it.")
        if HALF.search(query):
            raise UsageError("The query contains half of a surrogate pair", needed="Unicode text", fix="Type it again.")
        rankings, truncated = [], []
        for model, index in zip(self.models, self._indices):
            with self._guard:
                vector, cut = _embed(model, query)
            rankings.append(index.rank(vector))
            truncated.append(cut)
        others = [rankings[1], rankings[0]] if len(rankings) == 2 else [None]
        return [
            Results(model.name, self._hits(ranking, other, hits), cut, model.measure, threshold)
            for model, ranking, other, cut, threshold in zip(self.models, rankings, others, truncated, self.thresholds)
        ]

    def _hits(self, ranking: Ranking, other: Ranking | None, number: int) -> list[Hit]:
        rows, values = ranking.nearest(number)
        texts, labels, columns = self.sentences.texts, self.sentences.labels, self.sentences.columns
        return [
            Hit(
                texts[row],
                labels[row] if labels else "",
                rank,
                float(value),
                other.rank_of(row) if other else None,
                {name: cells[row] for name, cells in columns.items()},
            )
            for rank, (row, value) in enumerate(zip(rows.tolist(), values), start=1)
        ]


def _threshold(vectors: np.ndarray) -> float | None:
    """Return the cosine above which a query finds about one unrelated sentence; None if there are too few."""
    scores = unrelated_scores(vectors)
    return scores.threshold() if scores else None


def _embed(model: SearchModel, query: str) -> tuple[np.ndarray, bool]:
    """Return the vector (d,) float32 of a query, of unit length for the cosine, and whether the query was truncated."""
    encoder = model.encoder
    known = query in encoder.truncated
    (vector,) = encoder([query]).values()
    truncated = query in encoder.truncated
    if not known:
        encoder.truncated.discard(query)  # a server would collect them
    if not np.isfinite(vector).all():
        raise UsageError(f"{encoder.name} gives an embedding that is not finite", fix="Use another model.")
    return prepared(model.measure, vector)[0], truncated
