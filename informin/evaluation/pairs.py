"""Graded sentence pairs, and their correlation with the similarity of embeddings."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from scipy.stats import pearsonr, spearmanr

from informin.errors import UndefinedScoreError, UsageError, counted
from informin.evaluation.encode import Encode, alignment, embed_once, uniformity, unit
from informin.evaluation.measures import PAIRS, Measure
from informin.files import last_name
from informin.texts import Cells, as_number, as_sentence, read_rows

COLUMNS = ("sentence1", "sentence2", "score")


@dataclass(frozen=True)
class GradedPairs:
    """N sentence pairs with a human grade of their similarity; higher is more similar."""

    name: str  # name in tables, such as "STS-B dev"
    sentences1: list[str]
    sentences2: list[str]
    scores: np.ndarray  # (N,), on any scale

    kind: ClassVar[str] = "pairs"
    measures: ClassVar[dict[str, Measure]] = PAIRS

    def __post_init__(self):
        # Other sequences are accepted, too, such as a column of a table.
        for name in ("sentences1", "sentences2"):
            object.__setattr__(self, name, list(getattr(self, name)))
        object.__setattr__(self, "scores", np.asarray(self.scores))
        if not len(self.sentences1) == len(self.sentences2) == len(self.scores):
            raise UsageError(f"{self.name} has sides of different lengths", needed="two sentences and a score per pair")

    @classmethod
    def of_rows(cls, name: str, rows: Sequence[tuple[str, str, float]]) -> "GradedPairs":
        """Create pairs from rows of two sentences and their grade."""
        first, second, grades = zip(*rows)
        return cls(name, list(first), list(second), np.array(grades))

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def sha256(self) -> str:
        """SHA-256 of sentences and grades, independent of the file name."""
        scores = [str(score) for score in self.scores.tolist()]
        text = "\0".join(self.sentences1 + self.sentences2 + scores)
        return hashlib.sha256(text.encode()).hexdigest()

    def texts(self) -> list[str]:
        """Return the distinct sentences."""
        return list(dict.fromkeys(self.sentences1 + self.sentences2))

    def score(self, encode: Encode) -> dict[str, float]:
        """Return the scores of `score_pairs`."""
        return score_pairs(encode, self)


def load_pairs(path: str | Path) -> GradedPairs:
    """Load graded pairs from a TSV, CSV or JSONL file with the columns sentence1, sentence2 and score.

    Raises:
        UsageError: A column is missing, a sentence is blank, a score is not a number, or all scores are equal.
    """
    return pairs_of_rows(read_rows(path, COLUMNS, "eval_pairs"), last_name(path), str(path), "eval_pairs")


def pairs_of_rows(rows: Iterable[Cells], name: str, source: str, option: str) -> GradedPairs:
    """Return the graded pairs in the rows of a table; see `load_pairs`.

    Args:
        name: Name in tables.
        source: Where the rows come from, for errors.
    """
    found = []
    for row in rows:
        first, second = (as_sentence(row, column) for column in COLUMNS[:2])
        found.append((first, second, as_number(row, "score")))
    if len({grade for _, _, grade in found}) < 2:
        raise UsageError(
            f"{source} has {counted(len(found), 'pair')} and fewer than two different scores",
            option=option,
            needed="two or more different scores, for a rank correlation",
        )
    return GradedPairs.of_rows(name, found)


def score_pairs(encode: Encode, pairs: GradedPairs) -> dict[str, float]:
    """Return the rank correlation of cosine and grade, and alignment and uniformity.

    Args:
        encode: Function from N sentences to embeddings (N, d); called once, with the distinct sentences.

    Returns:
        `spearman`: Spearman correlation of cosine and grade, x 100. `alignment`: over the pairs graded above 80% of the
        scale (on STS-B, above 4, as in Gao et al., 2021, section 3). `uniformity`: over all distinct sentences.

    Raises:
        UndefinedScoreError: See `embed_once` and `correlations`.
    """
    embedding = embed_once(encode, pairs.texts())
    x = embedding(pairs.sentences1)  # (N, d)
    y = embedding(pairs.sentences2)
    positives = positive(pairs.scores)
    return {
        "spearman": correlations(cosine(x, y), pairs.scores)["spearman"],
        "alignment": alignment(x[positives], y[positives]),
        "uniformity": uniformity(embedding(pairs.texts())),
    }


def positive(scores: np.ndarray) -> np.ndarray:
    """Return a mask (N,) of the positive pairs, graded above 80% of the scale (on STS-B, above 4)."""
    low = scores.min()
    high = scores.max()
    return scores > low + 0.8 * (high - low)


def cosine(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the cosine (N,) of each row of x with the same row of y, both (N, d); 0 if a vector is 0."""
    return (unit(x) * unit(y)).sum(-1)


def correlations(predicted: np.ndarray, gold: np.ndarray) -> dict[str, float]:
    """Return the Spearman and Pearson correlation x 100 of N predictions with N grades.

    Raises:
        UndefinedScoreError: There are fewer than two, or one side is constant or not finite.
    """
    for name, values in (("predictions", predicted), ("grades", gold)):
        infinite = int((~np.isfinite(values)).sum())
        if infinite:
            raise UndefinedScoreError(f"{infinite:,} of {len(values):,} {name} are not finite")
        # Treat values equal up to rounding as constant: cosines of equal vectors differ in their last bits.
        if len(values) < 2 or np.ptp(values) <= 1e-12 * np.abs(values).max():
            raise UndefinedScoreError(f"all {len(values):,} {name} are equal, so the correlation is undefined")
    return {
        "spearman": 100 * float(spearmanr(predicted, gold).statistic),
        "pearson": 100 * float(pearsonr(predicted, gold).statistic),
    }
