"""A labeled sample, and how well embeddings keep its classes apart. No label is seen in training.

StackOverflow titles with their tag, for instance: what people cluster, search and classify in a domain of their own.
"""

import hashlib
import math
import reprlib
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import v_measure_score
from threadpoolctl import threadpool_limits

from informin.errors import UsageError, counted
from informin.evaluation.embedding_cache import Encode, embed_once
from informin.evaluation.geometry import nearest, unit
from informin.evaluation.measures import LABELS, Measure
from informin.evaluation.table_files import rows_by_column, text_in
from informin.textfiles import as_text

COLUMNS = ("text", "label")
DRAWS = 10  # seeds of the clustering, and of the sentences that few_shot learns from
SHOTS = 8  # sentences of each class that few_shot learns from
NEIGHBORS = 10
MOST_COMPARISONS = 5_000_000  # of sentences with classes; k-means takes about a minute for these


@dataclass(frozen=True)
class LabeledSentences:
    """N sentences, each of one class."""

    name: str  # what to call them in tables
    sentences: list[str]
    labels: list[str]

    kind: ClassVar[str] = "labels"
    measures: ClassVar[dict[str, Measure]] = LABELS

    @property
    def sha256(self) -> str:
        """Of sentences and labels, whatever their file is called."""
        return hashlib.sha256("\0".join([*self.sentences, *self.labels]).encode()).hexdigest()

    @property
    def counts(self) -> dict[str, int]:
        """What a reader of the scores wants to know of the sample."""
        distinct = self.distinct()
        return {"n": len(distinct.sentences), "classes": len(set(distinct.labels))}

    def texts(self) -> list[str]:
        """The distinct sentences."""
        return list(dict.fromkeys(self.sentences))

    def distinct(self) -> "LabeledSentences":
        """Of sentences that are there more than once, the first and its label."""
        first = dict(reversed(list(zip(self.sentences, self.labels))))
        texts = self.texts()
        return LabeledSentences(self.name, texts, [first[text] for text in texts])

    def score(self, encode: Encode) -> dict[str, float]:
        """See `score_labels`."""
        return score_labels(encode, self)


def load_labels(path: str | Path, option: str) -> LabeledSentences:
    """A labeled sample: TSV, CSV or JSONL with `text` and `label`, a word or a number.

    Args:
        option: what names the file, without dashes, for messages.

    Raises:
        UsageError: no such file or column, a row without text or label, a label that is neither text nor a number; one
            class alone, no class with two different sentences, or too many sentences and classes to cluster.
    """
    path, texts, labels = Path(path), [], []
    for number, record in rows_by_column(path, option, COLUMNS):
        texts.append(text_in(record, "text", path, number))
        labels.append(_label(record["label"], path, number))
    labeled = LabeledSentences(path.name, texts, labels)
    sizes = Counter(labeled.distinct().labels)
    found = f"{path}: found {counted(sizes.total(), 'different sentence')}"
    if len(sizes) < 2:
        raise UsageError(f"{found} with {counted(len(sizes), 'label')}; needed two labels or more.")
    if (comparisons := sizes.total() * len(sizes)) > MOST_COMPARISONS:
        raise UsageError(
            f"{found} with {counted(len(sizes), 'label')}. Clustering compares each sentence with each class, "
            f"{comparisons:,} comparisons here; up to {MOST_COMPARISONS:,} are made. Keep a sample of the sentences or "
            "of the labels. Is `label` the right column?"
        )
    if max(sizes.values()) < 2:
        raise UsageError(
            f"{found}, each with a label of its own. A sentence is compared with others of its class: needed two or "
            "more. Is `label` the right column?"
        )
    return labeled


def _label(cell: object, path: Path, number: int) -> str:
    not_finite = isinstance(cell, float) and not math.isfinite(cell)
    if isinstance(cell, bool) or not isinstance(cell, str | int | float) or not_finite:
        raise UsageError(f"{path}, line {number}: the label is {reprlib.repr(cell)}; needed a word or a number.")
    if not str(cell).strip():
        raise UsageError(f"{path}, line {number}: no label. Every row needs {', '.join(COLUMNS)}.")
    return as_text(str(cell), path, number).strip()


def score_labels(encode: Encode, labeled: LabeledSentences) -> dict[str, float]:
    """How well embeddings keep the classes of a labeled sample apart, by cosine, all x 100.

    A sentence that is there twice would be its own nearest neighbor, so of exact copies the first alone counts.

    Args:
        encode: from N sentences to (N, d); called once, with the distinct sentences.

    Returns:
        `v_measure`, `v_measure_sd`: see `clustering`. `nearest_neighbor`, `nearest_10`: see `neighbor_accuracy`.
        `few_shot`, `few_shot_sd`: see `few_shot_accuracy`. `_sd`: standard deviation (n - 1) over 10 draws.

    Raises:
        UndefinedScoreError: see `embed_once`.
    """
    labeled = labeled.distinct()
    x = unit(embed_once(encode, labeled.sentences)(labeled.sentences)).astype(np.float32)  # (N, d)
    names, y = np.unique(labeled.labels, return_inverse=True)  # (N,), 0 to C - 1
    # Sums of several threads come in any order; so do the last digits, and now and then a sentence's cluster.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="sklearn")  # of fewer points than clusters: embeddings that are equal
        clusters = clustering(x, y, len(names))
        few = few_shot_accuracy(x, y)
    nearest, near_10 = neighbor_accuracy(x, y)
    return {
        "v_measure": float(np.mean(clusters)),
        "v_measure_sd": float(np.std(clusters, ddof=1)),
        "nearest_neighbor": nearest,
        "nearest_10": near_10,
        "few_shot": float(np.mean(few)),
        "few_shot_sd": float(np.std(few, ddof=1)),
    }


def clustering(x: np.ndarray, y: np.ndarray, classes: int, starts: int = DRAWS) -> list[float]:
    """V-measure x 100 of k-means with the true number of classes, from some seeds with one start each.

    Args:
        x: (N, d), of length 1.
        y: (N,), the classes.
        starts: how many; a score has 10.

    Source:
        MTEB's clustering tasks (Muennighoff et al., EACL 2023, section 3.1), which take the mini-batch form of k-means
        on embeddings as they are; this is Lloyd's, on unit vectors. V-measure: Rosenberg & Hirschberg (2007).
    """
    found = (KMeans(classes, n_init=1, random_state=seed).fit_predict(x) for seed in range(starts))
    return [100 * float(v_measure_score(y, clusters)) for clusters in found]


def neighbor_accuracy(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Leave-one-out accuracy x 100 of the nearest neighbor's class, and of the vote of the 10 nearest.

    Each of the 10, or of all others where there are fewer, votes with its cosine, where that is above 0; of classes
    with equal votes the first by name wins.

    Args:
        x: (N, d), of length 1.
        y: (N,), the classes, from 0.
    """
    index, cosines = nearest(x, min(NEIGHBORS, len(x) - 1))
    votes = np.zeros((len(x), y.max() + 1))
    np.add.at(votes, (np.arange(len(x))[:, None], y[index]), np.maximum(cosines, 0))
    return 100 * float((y[index[:, 0]] == y).mean()), 100 * float((votes.argmax(1) == y).mean())


def few_shot_accuracy(x: np.ndarray, y: np.ndarray) -> list[float]:
    """Accuracy x 100 of a logistic regression that learns from 8 sentences of each class, on the rest; 10 draws.

    Of a class of fewer than 9 sentences, half of them are learned from, and 1 at least.

    Args:
        x: (N, d), of length 1.
        y: (N,), the classes.

    Source:
        MTEB's classification tasks (Muennighoff et al., 2023, section 3.1): 8 to 16 sentences of each class, 10 draws.
    """
    scores = []
    for seed in range(DRAWS):
        generator = np.random.default_rng(seed)
        drawn = np.concatenate([_drawn(np.flatnonzero(y == label), generator) for label in np.unique(y)])
        rest = np.setdiff1d(np.arange(len(y)), drawn)
        model = LogisticRegression(max_iter=100).fit(x[drawn], y[drawn])
        scores.append(100 * float(model.score(x[rest], y[rest])))
    return scores


def _drawn(rows: Sequence[int], generator: np.random.Generator) -> np.ndarray:
    """The rows of one class that are learned from."""
    return generator.permutation(rows)[: SHOTS if len(rows) > SHOTS else max(1, len(rows) // 2)]
