"""Graded sentence pairs, the user's own among them, and their score."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from scipy.stats import pearsonr, spearmanr

from informin.errors import UndefinedScoreError, UsageError, counted
from informin.evaluation.embedding_cache import Encode, embed_once
from informin.evaluation.geometry import alignment, uniformity, unit
from informin.evaluation.measures import PAIRS, Measure
from informin.evaluation.table_files import as_number, rows_by_column, text_in

COLUMNS = ("sentence1", "sentence2", "score")


@dataclass(frozen=True)
class GradedPairs:
    """N sentence pairs with a human grade of their similarity, higher is more similar."""

    name: str  # what to call them in tables, "STS-B dev" for instance
    sentences1: list[str]
    sentences2: list[str]
    scores: np.ndarray  # (N,), on any scale

    kind: ClassVar[str] = "pairs"
    measures: ClassVar[dict[str, Measure]] = PAIRS

    @classmethod
    def of_rows(cls, name: str, rows: Sequence[tuple[str, str, float]]) -> "GradedPairs":
        """From two sentences and their grade in each row."""
        first, second, grades = zip(*rows)
        return cls(name, list(first), list(second), np.array(grades))

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def sha256(self) -> str:
        """Of sentences and grades, whatever their file is called."""
        text = "\0".join([*self.sentences1, *self.sentences2, *map(str, self.scores.tolist())])
        return hashlib.sha256(text.encode()).hexdigest()

    def texts(self) -> list[str]:
        """The distinct sentences."""
        return list(dict.fromkeys(self.sentences1 + self.sentences2))

    def score(self, encode: Encode) -> dict[str, float]:
        """See `score_pairs`."""
        return score_pairs(encode, self)


def load_pairs(path: str | Path) -> GradedPairs:
    """The user's own pairs: TSV, CSV or JSONL with sentence1, sentence2 and score.

    Raises:
        UsageError: no such file or column, a grade that is no number, fewer than 2 pairs, grades all alike, or every
            pair one sentence twice.
    """
    path, rows = Path(path), []
    for number, record in rows_by_column(path, "eval_pairs", COLUMNS):
        first, second = (text_in(record, name, path, number) for name in COLUMNS[:2])
        rows.append((first, second, read_grade(record["score"], path, number)))
    if len({grade for _, _, grade in rows}) < 2:
        raise UsageError(
            f"{path}: found {counted(len(rows), 'pair')} and fewer than two different scores. A rank correlation needs "
            "at least two pairs with different scores."
        )
    if all(first.strip() == second.strip() for first, second, _ in rows):
        raise UsageError(
            f"{path}: each of its {len(rows):,} pairs is a sentence with itself, so that all cosines would be 1. "
            "Needed different sentences in sentence1 and sentence2."
        )
    return GradedPairs.of_rows(path.name, rows)


def score_pairs(encode: Encode, pairs: GradedPairs) -> dict[str, float]:
    """How well the cosine of embeddings follows the grades, and how the embeddings lie on the sphere.

    Args:
        encode: from N sentences to (N, d); called once, with the distinct sentences.

    Returns:
        `spearman`: Spearman correlation of cosine and grade, x 100. `alignment`: over the pairs graded above 80% of the
        scale (on STS-B, above 4, as in Gao et al., 2021, section 3). `uniformity`: over all distinct sentences.

    Raises:
        UndefinedScoreError: see `embed_once` and `correlations`.
    """
    embedding = embed_once(encode, pairs.texts())
    x, y = embedding(pairs.sentences1), embedding(pairs.sentences2)  # (N, d)
    alike = positive(pairs.scores)
    return {
        "spearman": correlations(cosine(x, y), pairs.scores)["spearman"],
        "alignment": alignment(x[alike], y[alike]),
        "uniformity": uniformity(embedding(pairs.texts())),
    }


def positive(scores: np.ndarray) -> np.ndarray:
    """(N,) bool: the pairs that count as alike, graded above 80% of the scale (on STS-B, above 4)."""
    low, high = scores.min(), scores.max()
    return scores > low + 0.8 * (high - low)


def cosine(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(N,): the cosine of each row of x with the same row of y, both (N, d); 0 where a vector is 0."""
    return (unit(x) * unit(y)).sum(-1)


def correlations(predicted: np.ndarray, gold: np.ndarray) -> dict[str, float]:
    """`spearman` and `pearson`, x 100, of N predictions with N grades.

    Raises:
        UndefinedScoreError: there are fewer than two, or one side is constant or not finite.
    """
    for name, values in (("predictions", predicted), ("grades", gold)):
        if not np.isfinite(values).all():
            raise UndefinedScoreError(f"of {len(values):,} {name} {int((~np.isfinite(values)).sum()):,} are not finite")
        # Equal up to rounding is constant too: cosines of equal vectors differ in their last bits.
        if len(values) < 2 or np.ptp(values) <= 1e-12 * np.abs(values).max():
            raise UndefinedScoreError(f"all {len(values):,} {name} are equal, so that no correlation is defined")
    return {
        "spearman": 100 * float(spearmanr(predicted, gold).statistic),
        "pearson": 100 * float(pearsonr(predicted, gold).statistic),
    }


def read_grade(text: object, path: Path, number: int) -> float:
    """A grade as a number. Raises UsageError where it is none, or not finite."""
    return as_number(text, "score", path, number)
