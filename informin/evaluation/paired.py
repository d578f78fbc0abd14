"""Scores of two encoders on the same data, with intervals from a paired bootstrap over pairs, sentences or queries."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from scipy.stats import rankdata

from informin.errors import UndefinedScoreError
from informin.evaluation.collections import Collection
from informin.evaluation.development import DevelopmentSet
from informin.evaluation.embedding_cache import Encode
from informin.evaluation.geometry import nearest, unit
from informin.evaluation.labels import LabeledSentences
from informin.evaluation.pairs import GradedPairs, cosine

RESAMPLES = 1000
LEVEL = 95  # %
Statistic = Callable[[Iterable[np.ndarray]], np.ndarray]  # from R samples (N,) of items to scores (R,)


def paired_scores(sets: Sequence[DevelopmentSet], old: Encode, new: Encode) -> list[dict]:
    """Score two encoders on development sets, by the first measure that is defined for parts of a set.

    These are Spearman for graded pairs, 1-NN accuracy for labeled sentences, and nDCG@10 for retrieval. V-measure
    is not the mean of a score per sentence, so it has no bootstrap interval. Sets without a defined score are left out.

    Returns:
        For each set: name; kind; measure, a key of `informin.evaluation.measures`; n, number of pairs, sentences or
        queries; old, new and difference, each the score, and the ends of its 95% interval.
    """
    found = []
    for one in sets:
        try:
            measure, n, before, after = _statistics(one, old, new)
            entry = _entry(before, after, n)
        except UndefinedScoreError:
            continue
        found.append({"name": one.name, "kind": one.kind, "measure": measure, "n": n, **entry})
    return found


def _samples(n: int) -> Iterator[np.ndarray]:
    """Yield the samples (N,) of the bootstrap, one at a time because all of them would need much memory."""
    source = np.random.default_rng(0)
    return (source.integers(n, size=n) for _ in range(RESAMPLES))


def _entry(before: Statistic, after: Statistic, n: int) -> dict[str, list[float]]:
    scores = [(one([np.arange(n)])[0], one(_samples(n))) for one in (before, after)]
    scores.append((scores[1][0] - scores[0][0], scores[1][1] - scores[0][1]))
    entry = {}
    for name, (value, resampled) in zip(("old", "new", "difference"), scores):
        defined = resampled[np.isfinite(resampled)]
        if not np.isfinite(value) or not len(defined):
            raise UndefinedScoreError(f"the {name} score is undefined")
        tail = (100 - LEVEL) / 2
        entry[name] = [float(value), *map(float, np.percentile(defined, [tail, 100 - tail]))]
    return entry


def _statistics(one: DevelopmentSet, old: Encode, new: Encode) -> tuple[str, int, Statistic, Statistic]:
    """Return the measure, the number of items, and the score of a sample of them by each encoder."""
    if isinstance(one, GradedPairs):
        x, y = (cosine(encode(one.sentences1), encode(one.sentences2)) for encode in (old, new))
        return "spearman", len(one), _spearman(x, one.scores), _spearman(y, one.scores)
    if isinstance(one, LabeledSentences):
        distinct = one.distinct()
        x, y = (_neighbor_is_right(distinct, encode) for encode in (old, new))
        return "nearest_neighbor", len(x), _mean(x), _mean(y)
    if not one.queries:
        raise UndefinedScoreError("no query has a relevant document")
    x, y = (_gain(one, encode) for encode in (old, new))
    return "ndcg_10", len(x), _mean(x), _mean(y)


def _spearman(cosines: np.ndarray, grades: np.ndarray) -> Statistic:
    """Return a function from R samples (N,) of pairs to Spearman x 100; NaN if all grades or cosines are equal."""

    def score(rows: Iterable[np.ndarray]) -> np.ndarray:
        found = []
        for row in rows:
            x, y = (rankdata(values[row]) - (len(row) + 1) / 2 for values in (cosines, grades))
            length = np.sqrt((x @ x) * (y @ y))
            found.append(100 * (x @ y) / length if length > 0 else np.nan)
        return np.array(found)

    return score


def _mean(values: np.ndarray) -> Statistic:
    """Return a function from R samples (N,) to the means of values (N,)."""
    return lambda rows: np.array([values[row].mean() for row in rows])


def _neighbor_is_right(labeled: LabeledSentences, encode: Encode) -> np.ndarray:
    """Return 100 for each sentence whose nearest neighbor has its label, else 0."""
    neighbors = nearest(unit(encode(labeled.sentences)).astype(np.float32), 1)[0][:, 0]
    labels = np.array(labeled.labels)
    return 100.0 * (labels == labels[neighbors])


def _gain(collection: Collection, encode: Encode) -> np.ndarray:
    """Return nDCG@10 x 100 of each query."""
    sides = (collection.queries, collection.documents)
    queries, documents = (unit(encode(texts)).astype(np.float32) for texts in sides)
    return collection.scores(collection.rank(queries, documents))["ndcg_10"]
