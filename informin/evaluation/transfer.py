"""Transfer tasks: logistic regression on frozen embeddings, by SentEval's protocol (Conneau & Kiela, LREC 2018)."""

from collections.abc import Sequence

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold

from informin.evaluation.encode import Encode, embed_once
from informin.evaluation.logistic import LogisticPath
from informin.evaluation.senteval import TransferTask

FOLDS = 10
SENTEVAL_SEED = 1111  # SentEval's, for the shuffling of the folds
# SentEval's grids for scikit-learn's LogisticRegression.
GRID = {"nested": range(-2, 4), "dev": range(-2, 4), "folds": range(-1, 6)}


def score_transfer(encode: Encode, task: TransferTask) -> dict:
    """Return the accuracy x 100 of logistic regressions on the embeddings of a task.

    Args:
        encode: Function from N sentences to embeddings (N, d); called once, with the distinct sentences.

    Returns:
        `score`: on the test part, or over the ten outer folds. `dev`: the accuracy that selected C (over folds, or on
        the dev part); with the dev split it is also the score. `n`: number of examples scored.

    Raises:
        UndefinedScoreError: An embedding is not finite.
    """
    embedding = embed_once(encode, task.texts())
    sides = [embedding(side) for side in task.sides]  # (N, d) each
    joined = sides[0] if len(sides) == 1 else np.hstack([np.abs(sides[0] - sides[1]), sides[0] * sides[1]])
    order = _order(task)
    features = torch.from_numpy(joined[order])
    labels = task.labels[order]
    test, dev = _nested(features, labels) if task.protocol == "nested" else _tested(features, labels, task)
    return {"score": 100 * float(dev if task.split == "dev" else test), "dev": 100 * float(dev), **task.counts}


def _order(task: TransferTask) -> list[int]:
    """Return the row order: by number of words and label within each part. SentEval's folds depend on this order."""
    parts = list(task.parts.values()) or [slice(0, len(task.labels))]
    keys = list(zip(*([len(s.split()) for s in side] for side in task.sides), task.labels))
    return [i for part in parts for i in sorted(range(part.start, part.stop), key=keys.__getitem__)]


def _nested(features: torch.Tensor, labels: np.ndarray) -> tuple[float, float]:
    """Return the accuracy on the outer folds, and on the inner folds that select C."""
    outer = _splits(labels)
    inner = [[(train[fit], train[rest]) for fit, rest in _splits(labels[train])] for train, _ in outer]
    trains = [train for train, _ in outer] + [fit for folds in inner for fit, _ in folds]
    right = _correct(features, labels, _masks(labels, trains), GRID["nested"])
    dev = []
    test = []
    for i, (_, held_out) in enumerate(outer):
        best, accuracy = _best(right, FOLDS + i * FOLDS, [rest for _, rest in inner[i]])
        dev.append(accuracy)
        test.append(right[best][held_out, i].mean())
    return float(np.mean(test)), float(np.mean(dev))


def _tested(features: torch.Tensor, labels: np.ndarray, task: TransferTask) -> tuple[float, float]:
    """Return the accuracy on the test part, and on the dev part or the folds of the train part that select C."""
    train = task.parts["train"]
    # The train part comes first, so its row numbers are valid for all rows.
    fits, held_out = ([], [task.parts["dev"]]) if task.protocol == "dev" else zip(*_splits(labels[train]))
    right = _correct(features, labels, _masks(labels, list(fits) + [train]), GRID[task.protocol])
    best, accuracy = _best(right, 0, held_out)
    return right[best][task.parts["test"], -1].mean(), accuracy


def _best(right: list[np.ndarray], column: int, held_out: Sequence) -> tuple[int, float]:
    """Return the index of the C with the best mean accuracy on held-out rows, and that accuracy.

    Training sets start at `column`. Ties go to the smallest C. Like SentEval, compares percentages rounded to two
    decimals, so that floating-point errors do not break ties.
    """
    accuracy = [np.mean([grid[rows, i].mean() for i, rows in enumerate(held_out, start=column)]) for grid in right]
    best = int(np.argmax(np.round(100 * np.array(accuracy), 2)))
    return best, accuracy[best]


def _splits(labels: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(StratifiedKFold(FOLDS, shuffle=True, random_state=SENTEVAL_SEED).split(labels, labels))


def _masks(labels: np.ndarray, trains: Sequence) -> np.ndarray:
    """Return a mask (N, F) of the rows of each of F training sets."""
    masks = np.zeros((len(labels), len(trains)), dtype=bool)
    for column, rows in enumerate(trains):
        masks[rows, column] = True
    return masks


def _correct(features: torch.Tensor, labels: np.ndarray, masks: np.ndarray, grid: range) -> list[np.ndarray]:
    """Return for each C a mask (N, F): whether the regression of training set f classifies row i correctly."""
    trains = torch.from_numpy(masks)
    classes = np.unique(labels)
    against = classes[1:] if len(classes) == 2 else classes  # two classes need only one regression
    paths = [LogisticPath(features, torch.from_numpy(labels == label), trains) for label in against]
    right = []
    for exponent in grid:
        values = torch.stack([path.decision_values(2.0**exponent) for path in paths])  # (classes, N, F)
        predicted = (values[0] > 0).long() if len(paths) == 1 else values.argmax(0)
        right.append(classes[predicted.numpy()] == labels[:, None])
    return right
