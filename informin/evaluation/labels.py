"""Labeled sentences, and scores of how well embeddings separate their classes.

Labels, such as the tags of StackOverflow titles, are used only for scoring, never in training.
"""

import hashlib
import logging
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import v_measure_score
from threadpoolctl import threadpool_limits

from informin.errors import UndefinedScoreError, UsageError, counted
from informin.evaluation.encode import Encode, embed_once, unit
from informin.evaluation.measures import LABELS, Measure
from informin.evaluation.neighbors import nearest
from informin.evaluation.retrieval import name_in
from informin.files import last_name
from informin.texts import Cells, is_missing, joined_cells, read_rows

logger = logging.getLogger(__name__)

LABEL_COLUMNS = ("text", "label")  # of a file of labeled sentences
DRAWS = 10  # seeds of K-means, and of the training sentences of few_shot
SHOTS = 8  # training sentences per class of few_shot
NEIGHBORS = 10


@dataclass(frozen=True)
class LabeledSentences:
    """N sentences with one label each."""

    name: str  # name in tables
    sentences: list[str]
    labels: list[str]

    kind: ClassVar[str] = "labels"
    measures: ClassVar[dict[str, Measure]] = LABELS

    def __post_init__(self):
        object.__setattr__(self, "sentences", list(self.sentences))
        labels = list(self.labels)
        for row, label in enumerate(labels):
            if is_missing(label):
                raise UsageError(f"{self.name} has no label in row {row:,}", fix="Leave out sentences without a label.")
        object.__setattr__(self, "labels", [name_in(label).strip() for label in labels])
        if len(self.sentences) != len(self.labels):
            found = f"{counted(len(self.sentences), 'sentence')} and {counted(len(self.labels), 'label')}"
            raise UsageError(f"{self.name} has {found}", needed="one label per sentence")

    @property
    def sha256(self) -> str:
        """SHA-256 of sentences and labels, independent of the file name."""
        return hashlib.sha256("\0".join(self.sentences + self.labels).encode()).hexdigest()

    @property
    def counts(self) -> dict[str, Any]:
        """Kind, and number of distinct sentences and of classes."""
        distinct = self.distinct()
        return {"kind": self.kind, "n": len(distinct.sentences), "classes": len(set(distinct.labels))}

    def texts(self) -> list[str]:
        """Return the distinct sentences."""
        return list(dict.fromkeys(self.sentences))

    def distinct(self) -> "LabeledSentences":
        """Return a copy without duplicates, each sentence with the label of its first occurrence."""
        first = dict(reversed(list(zip(self.sentences, self.labels))))
        texts = self.texts()
        return LabeledSentences(self.name, texts, [first[text] for text in texts])

    def score(self, encode: Encode) -> dict[str, float]:
        """Return the scores of `score_labels`."""
        return score_labels(encode, self)


def load_labels(
    path: str | Path, option: str = "labels", text_column: str = "text", label_column: str = "label"
) -> LabeledSentences:
    """Load labeled sentences from a TSV, CSV or JSONL file; skip rows without a text or a label, with a warning.

    Args:
        option: Name of the option that names the file, without dashes.
        text_column: Column with the sentences, or several to join, such as subject,body.
        label_column: Column with the labels, strings or numbers.

    Raises:
        UsageError: The file or a column does not exist, a text is not a string, no label is on two different sentences
            or all sentences have the same one.
    """
    columns = [name.strip() for name in text_column.split(",")]
    fix = "Choose the columns with `text_column` and `label_column`." if option == "labels" else None
    rows = read_rows(path, [*columns, label_column], option, fix=fix)
    return labels_of_rows(rows, columns, label_column, last_name(path), str(path), option)


def labels_of_rows(
    rows: Iterable[Cells], columns: Sequence[str], label_column: str, name: str, source: str, option: str
) -> LabeledSentences:
    """Return the labeled sentences in the rows of a table; see `load_labels`.

    Args:
        name: Name in tables.
        source: Where the rows come from, for messages.
    """
    texts = []
    labels = []
    skipped = 0
    for row in rows:
        text = joined_cells(columns, [row[name] for name in columns], partial(getattr, row, "place"))
        if not text or row[label_column] is None:
            skipped += 1
            continue
        texts.append(text)
        labels.append(name_in(row[label_column]).strip())
    if skipped:
        logger.warning(f"{source}: {counted(skipped, 'row')} without a text or a label skipped.")
    labeled = LabeledSentences(name, texts, labels)
    sizes = Counter(labeled.distinct().labels)
    if not 2 <= len(sizes) < sizes.total():
        raise UsageError(
            f"{source} has {counted(sizes.total(), 'different sentence')} with {counted(len(sizes), 'label')}",
            option=option,
            needed="two or more labels, and one that two sentences have",
        )
    return labeled


def score_labels(encode: Encode, labeled: LabeledSentences) -> dict[str, float]:
    """Return how well embeddings separate the classes, by cosine similarity, all x 100.

    Duplicate sentences count once, because a copy would be its own nearest neighbor.

    Args:
        encode: Function from N sentences to embeddings (N, d); called once, with the distinct sentences.

    Returns:
        `v_measure`, `v_measure_sd`: see `clustering`. `nearest_neighbor`, `nearest_10`: see `neighbor_accuracy`.
        `few_shot`, `few_shot_sd`: see `few_shot_accuracy`. `_sd`: standard deviation (n - 1) over 10 draws.

    Raises:
        UndefinedScoreError: There are fewer than two classes, or no class has two sentences; or see `embed_once`.
    """
    labeled = labeled.distinct()
    classes = len(set(labeled.labels))
    if classes < 2 or classes == len(labeled.labels):
        raise UndefinedScoreError(f"{labeled.name} needs two or more labels, and one that two sentences have")
    x = unit(embed_once(encode, labeled.sentences)(labeled.sentences)).astype(np.float32)  # (N, d)
    names, y = np.unique(labeled.labels, return_inverse=True)  # (N,), 0 to C - 1
    # With several threads, the order of sums varies, and with it the last digits and sometimes a cluster.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="sklearn")  # fewer distinct points than clusters: equal embeddings
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


def clustering(x: np.ndarray, y: np.ndarray, classes: int) -> list[float]:
    """Return the V-measure x 100 of K-means with the true number of classes, for each of 10 seeds, with one start each.

    Args:
        x: Unit vectors (N, d).
        y: Classes (N,).

    Source:
        MTEB's clustering tasks (Muennighoff et al., EACL 2023, section 3.1). MTEB uses mini-batch K-means on unscaled
        embeddings; this is Lloyd's algorithm on unit vectors. V-measure: Rosenberg & Hirschberg (2007).
    """
    fits = (KMeans(classes, n_init=1, random_state=seed).fit_predict(x) for seed in range(DRAWS))
    return [100 * float(v_measure_score(y, clusters)) for clusters in fits]


def neighbor_accuracy(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return the leave-one-out accuracy x 100 of the nearest neighbor, and of a vote of the 10 nearest neighbors.

    Votes are weighted by cosine, if it is above 0. Ties go to the first class by name.

    Args:
        x: Unit vectors (N, d).
        y: Classes (N,), from 0.
    """
    index, cosines = nearest(x, min(NEIGHBORS, len(x) - 1))
    votes = np.zeros((len(x), y.max() + 1))
    np.add.at(votes, (np.arange(len(x))[:, None], y[index]), np.maximum(cosines, 0))
    return 100 * float((y[index[:, 0]] == y).mean()), 100 * float((votes.argmax(1) == y).mean())


def few_shot_accuracy(x: np.ndarray, y: np.ndarray) -> list[float]:
    """Return the accuracy x 100 of a logistic regression on 8 sentences per class, tested on the rest, for 10 draws.

    For classes with fewer than 9 sentences, half of them (at least 1) are used for training.

    Args:
        x: Unit vectors (N, d).
        y: Classes (N,).

    Source:
        MTEB's classification tasks (Muennighoff et al., 2023, section 3.1): 8 to 16 sentences of each class, 10 draws.
    """
    scores = []
    for seed in range(DRAWS):
        generator = np.random.default_rng(seed)
        orders = [generator.permutation(np.flatnonzero(y == label)) for label in np.unique(y)]
        drawn = np.concatenate([x[: SHOTS if len(x) > SHOTS else max(1, len(x) // 2)] for x in orders])
        rest = np.setdiff1d(np.arange(len(y)), drawn)
        model = LogisticRegression(max_iter=100).fit(x[drawn], y[drawn])
        scores.append(100 * float(model.score(x[rest], y[rest])))
    return scores
