"""Positions of the sentences on a map: the first two principal components of their embeddings."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from sklearn.decomposition import PCA

from informin.labeled_sentences import Sentences

MOST_POINTS = 5_000  # on the map; a random sample of larger files
MOST_LABELS = 20  # with a color of their own; the others share one
OTHER, NO_LABEL = "other labels", "no label"
LONGEST = 200  # characters of a sentence on the map


@dataclass(frozen=True)
class Points:
    """M sentences on a map.

    Attributes:
        xy: (M, 2).
        texts: Sentences, shortened to 200 characters.
        labels: Labels to color by; None if the file has none.
        explained: Fraction of the variance in the two components, 0 to 1.
    """

    xy: np.ndarray
    texts: list[str]
    labels: list[str] | None
    explained: float


def map_points(sentences: Sentences, vectors: np.ndarray, most: int = MOST_POINTS) -> Points:
    """Place the sentences, or a random sample of them, on a map.

    Args:
        sentences: N sentences.
        vectors: Their unit vectors (N, d).
        most: Size of the sample.
    """
    rows = np.arange(len(vectors))
    if len(rows) > most:
        rows = np.sort(np.random.default_rng(0).choice(len(rows), most, replace=False))
    sample = sentences.take(rows.tolist())
    x = vectors[rows]
    number, xy = min(2, *x.shape), np.zeros((len(x), 2))
    with np.errstate(invalid="ignore"):  # no variance if all rows are equal
        pca = PCA(number, svd_solver="full").fit(x)
    xy[:, :number] = pca.transform(x)
    explained = float(np.nan_to_num(pca.explained_variance_ratio_).sum())
    return Points(xy, [shorten(text) for text in sample.texts], sample.labels and few_labels(sample.labels), explained)


def few_labels(labels: list[str]) -> list[str]:
    """Return the labels, with all but the most frequent 20 replaced by "other labels"."""
    frequent = {label for label, _ in Counter(filter(None, labels)).most_common(MOST_LABELS)}
    return [label if label in frequent else OTHER if label else NO_LABEL for label in labels]


def shorten(text: str) -> str:
    """Return a text in one line, cut to 200 characters."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."
