"""What a similarity means: the cosines between unrelated texts of a collection, measured without labels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from sklearn.metrics import silhouette_score
from torch import Tensor

from informin.evaluation.neighbors import nearest_rows, neighbor_means, nonzero, unit_tensor
from informin.evaluation.rows import raise_if_not_finite, rows_of
from informin.frozen.duplicates import distinct_rows, duplicate_keys
from informin.options import check_value

FEWEST_TEXTS = 100  # texts: with fewer, scores are not measured
COMPARED_TEXTS = 3_000  # texts that are compared at most
FEWEST_TOPICS = 5
TEXTS_PER_TOPIC = 6  # at least, on average
FINER = 2**0.25  # ratio between the numbers of topics that are tried
TOPIC_NEIGHBORS = 10  # of a text, over which it is averaged before topics are found
OWN_SHARE = 0.7  # of a text in its own average
NEARLY_BEST = 0.9  # of the best silhouette: numbers of topics above it count. Selected in experiments/.
RAREST_PAIRS = 10  # pairs behind the rarest probability
PER_DECADE = 8  # probabilities for each factor of 10
LARGEST = 1 - 1e-6  # cosine: the Fisher transformation of 1 is infinite


@dataclass(frozen=True)
class UnrelatedScores:
    """The upper tail of the cosines between texts of different topics.

    Attributes:
        texts: Number of texts in the collection.
        probabilities: Probabilities in descending order. Each is the chance that an unrelated text of the collection,
            drawn at random, has a higher cosine to a query than the cosine at the same place in `cosines`.
        cosines: Cosines in ascending order.
    """

    texts: int
    probabilities: Sequence[float]
    cosines: Sequence[float]

    def threshold(self, false_hits_per_query: float = 1.0, texts: int | None = None) -> float:
        """Return the cosine above which a query finds at most about this many unrelated texts.

        Args:
            false_hits_per_query: Number of unrelated texts, above 0.
            texts: Number of texts that are searched. Default: as many as in the collection.

        Returns:
            A cosine. Beyond the pairs that were compared, it is extrapolated: there, the logarithm of the probability
            falls linearly with the Fisher transformation of the cosine.

        Raises:
            UsageError: An argument is not above 0.
        """
        texts = self.texts if texts is None else texts
        for name, value in (("false_hits_per_query", false_hits_per_query), ("texts", texts)):
            check_value(0 < value < np.inf, name, value, "a number above 0")
        wanted = -np.log(min(1.0, false_hits_per_query / texts))
        rare = -np.log(self.probabilities)
        heights = np.arctanh(np.clip(self.cosines, -LARGEST, LARGEST))
        if wanted <= rare[-1]:
            return float(np.tanh(np.interp(wanted, rare, heights)))
        last = max(0, len(rare) - 1 - PER_DECADE)
        slope = (heights[-1] - heights[last]) / max(rare[-1] - rare[last], 1e-12)
        return float(np.tanh(heights[-1] + slope * (wanted - rare[-1])))


def unrelated_scores(
    vectors: np.ndarray,
    queries: np.ndarray | None = None,
    documents: np.ndarray | None = None,
    *,
    texts: int | None = None,
) -> UnrelatedScores | None:
    """Measure the cosines between texts of different topics, without labels.

    Related texts are rare, but they have the highest cosines, so they must not count. Topics are clusters of Ward's
    method, of embeddings without their mean and averaged with their nearest ones. The number of topics is not known:
    all numbers count whose silhouette is at least 90% of the best one, and a pair of texts counts as often as these
    clusterings separate it.

    Args:
        vectors: (n, d) embeddings of texts, in which topics are found. At most 3,000 of them are compared.
        queries: (n, d) vectors of the same texts whose cosines are measured, such as adapted ones. Default: the
            embeddings.
        documents: (n, d) vectors of the same texts in the index. Default: those as queries.
        texts: Number of texts in the collection. Default: n.

    Returns:
        None for fewer than 100 distinct texts, or if they form no topics.

    Raises:
        UsageError: An embedding contains NaN or infinity.
    """
    rows = draw_rows(len(vectors))
    x = _units(vectors, rows)
    kept = distinct_rows(duplicate_keys(x).numpy())
    kept = kept[nonzero(x[kept]).numpy()]
    if len(kept) < FEWEST_TEXTS:
        return None
    x = x[kept]
    y = x if queries is None else _units(queries, rows)[kept]
    z = y if documents is None else _units(documents, rows)[kept]
    apart = _separations(_sharpened(x))
    probabilities, cosines = _tail((y @ z.T).numpy(), apart)
    if not probabilities:  # no clustering separates the texts
        return None
    return UnrelatedScores(len(vectors) if texts is None else texts, probabilities, cosines)


def draw_rows(rows: int) -> np.ndarray:
    """Return the indices of a random sample of rows, in order."""
    return np.sort(np.random.default_rng(0).permutation(rows)[:COMPARED_TEXTS])


def _units(vectors: np.ndarray, rows: np.ndarray) -> Tensor:
    chunk = rows_of(np.asanyarray(vectors), rows)
    raise_if_not_finite(chunk)
    return unit_tensor(torch.from_numpy(chunk.astype(np.float64)))


def _sharpened(x: Tensor) -> Tensor:
    """Return unit rows (n, d) without their mean, each averaged with its nearest rows, so that topics stand out."""
    x = unit_tensor(x - x.mean(0))
    indices, cosines = nearest_rows(x, x, TOPIC_NEIGHBORS, first=0)
    means = neighbor_means(x.numpy(), indices, cosines)
    return unit_tensor(OWN_SHARE * x + (1 - OWN_SHARE) * means)


def _separations(x: Tensor) -> np.ndarray:
    """Return the fraction (n, n) of the clusterings of unit rows (n, d) that separate two rows."""
    distances = (1 - x @ x.T).clamp(min=0).numpy()
    np.fill_diagonal(distances, 0)
    tree = linkage(squareform(np.sqrt(2 * distances), checks=False), "ward")
    clusterings = list(_clusterings(tree, len(x)))
    tried = [(labels, silhouette_score(distances, labels, metric="precomputed")) for labels in clusterings]
    best = max(silhouette for _, silhouette in tried)
    used = [labels for labels, silhouette in tried if silhouette >= best - (1 - NEARLY_BEST) * abs(best)]
    apart = np.zeros((len(x), len(x)))
    for labels in used:
        apart += labels[:, None] != labels
    return apart / len(used)


def _clusterings(tree: np.ndarray, rows: int) -> Iterator[np.ndarray]:
    """Yield the topics (n,) of the rows, from 0, for every number of topics that is tried."""
    topics = float(FEWEST_TOPICS)
    while topics <= rows / TEXTS_PER_TOPIC:
        yield np.unique(fcluster(tree, round(topics), "maxclust"), return_inverse=True)[1]
        topics *= FINER


def _tail(cosines: np.ndarray, weights: np.ndarray) -> tuple[list[float], list[float]]:
    """Return probabilities and cosines of the upper tail of pairs (n, n) with weights; the diagonal does not count."""
    others = ~np.eye(len(cosines), dtype=bool)
    values = cosines[others]
    weights = weights[others]
    order = np.argsort(values)[::-1]  # not stable, which would take twice as long: equal cosines may change places
    values = values[order]
    above = np.cumsum(weights[order])
    pairs = len(values)
    exponents = np.arange(0, np.log10(pairs / RAREST_PAIRS), 1 / PER_DECADE)
    wanted = 10.0**-exponents
    wanted = wanted[wanted * pairs <= above[-1]]
    highest = values[np.searchsorted(above, wanted * pairs).clip(max=pairs - 1)]
    return wanted.tolist(), highest.tolist()
