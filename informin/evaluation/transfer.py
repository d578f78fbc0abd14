"""Transfer tasks: logistic regression on frozen embeddings, by SentEval's protocol (Conneau & Kiela, LREC 2018)."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold

from informin.evaluation.logistic import LogisticPath
from informin.evaluation.once import embed_once
from informin.evaluation.senteval import TransferTask

FOLDS = 10
SEED = 1111  # SentEval's, for the shuffling of the folds
# SentEval's grids for scikit-learn's LogisticRegression.
GRID = {"nested": range(-2, 4), "dev": range(-2, 4), "folds": range(-1, 6)}


def score_transfer(encode: Callable[[Sequence[str]], np.ndarray], task: TransferTask) -> dict:
    """Accuracy x 100 of logistic regressions on the embeddings of a task.

    Args:
        encode: from N sentences to (N, d); called once, with the distinct sentences.

    Returns:
        `score`: on the test part, or over the ten outer folds. `dev`: the accuracy that C was chosen by (over folds,
        or on the dev part), which is also the score where `task.split` says so. `n`: examples that the score is over.

    Raises:
        UndefinedScoreError: an embedding is not finite.
    """
    embedding = embed_once(encode, task.sentences())
    sides = [embedding(side) for side in task.texts]  # (N, d) each
    features = sides[0] if len(sides) == 1 else np.hstack([np.abs(sides[0] - sides[1]), sides[0] * sides[1]])
    order = _order(task)
    features, labels = torch.from_numpy(features[order]), task.labels[order]
    test, dev = {"nested": _nested, "dev": _dev, "folds": _folds}[task.protocol](features, labels, task.parts)
    return {"score": 100 * float(dev if task.split == "dev" else test), "dev": 100 * float(dev), "n": task.examples}


def _order(task: TransferTask) -> list[int]:
    """By length in words and label, within each part: SentEval sorts so, and its folds follow from the order."""
    parts = list(task.parts.values()) or [slice(0, len(task.labels))]
    words = [[len(s.split()) for s in side] for side in task.texts]

    def key(i):
        return (*(side[i] for side in words), task.labels[i])

    return [i for part in parts for i in sorted(range(part.start, part.stop), key=key)]


def _nested(features, labels, _) -> tuple[float, float]:
    outer = _splits(labels)
    masks = [_mask(len(labels), train) for train, _ in outer]
    inner = []  # of each outer fold, its ten held-out parts
    for train, _ in outer:
        held_out = [(train[fit], train[rest]) for fit, rest in _splits(labels[train])]
        masks += [_mask(len(labels), fit) for fit, _ in held_out]
        inner.append([rest for _, rest in held_out])
    right = _correct(features, labels, np.stack(masks, 1), GRID["nested"])
    dev, test = [], []
    for i, (_, held_out) in enumerate(outer):
        columns = range(FOLDS + i * FOLDS, FOLDS + (i + 1) * FOLDS)
        accuracy = [np.mean([grid[rows, c].mean() for rows, c in zip(inner[i], columns)]) for grid in right]
        best = _best(accuracy)
        dev.append(accuracy[best])
        test.append(right[best][held_out, i].mean())
    return np.mean(test), np.mean(dev)


def _dev(features, labels, parts) -> tuple[float, float]:
    masks = _mask(len(labels), parts["train"])[:, None]
    right = _correct(features, labels, masks, GRID["dev"])
    accuracy = [grid[parts["dev"], 0].mean() for grid in right]
    best = _best(accuracy)
    return right[best][parts["test"], 0].mean(), accuracy[best]


def _folds(features, labels, parts) -> tuple[float, float]:
    train = parts["train"]
    splits = _splits(labels[train])  # train comes first, so rows of the part are rows of the whole
    masks = [_mask(len(labels), fit) for fit, _ in splits] + [_mask(len(labels), train)]
    right = _correct(features, labels, np.stack(masks, 1), GRID["folds"])
    accuracy = [np.mean([grid[rest, i].mean() for i, (_, rest) in enumerate(splits)]) for grid in right]
    best = _best(accuracy)
    return right[best][parts["test"], FOLDS].mean(), accuracy[best]


def _best(accuracy: list[float]) -> int:
    """The first of the best; SentEval compares at two decimals of a percentage, so that rounding decides no tie."""
    return int(np.argmax(np.round(100 * np.array(accuracy), 2)))


def _splits(labels: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(StratifiedKFold(FOLDS, shuffle=True, random_state=SEED).split(labels, labels))


def _mask(length: int, rows) -> np.ndarray:
    mask = np.zeros(length, dtype=bool)
    mask[rows] = True
    return mask


def _correct(features: torch.Tensor, labels: np.ndarray, masks: np.ndarray, grid: range) -> list[np.ndarray]:
    """For each C, (N, F): is row i classified right by the regression of training set f?"""
    masks = torch.from_numpy(masks)
    classes = np.unique(labels)
    against = classes[1:] if len(classes) == 2 else classes  # of two classes, one regression says it all
    paths = [LogisticPath(features, torch.from_numpy(labels == label), masks) for label in against]
    right = []
    for exponent in grid:
        values = torch.stack([path.decision_values(2.0**exponent) for path in paths])  # (classes, N, F)
        predicted = (values[0] > 0).long() if len(paths) == 1 else values.argmax(0)
        right.append(classes[predicted.numpy()] == labels[:, None])
    return right
