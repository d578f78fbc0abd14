"""Compare embedding models on unlabeled texts: second halves found by first halves, and agreement with word search."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lgamma

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer

from informin.adapters.prediction import CERTAIN, FEWEST, HalvesTest, Prediction, choose, hold_out
from informin.adapters.rows import nearest_rows, unit_rows
from informin.errors import UsageError

# How often the model with the lower rank had the better score, over pairs of models on the same data, from
# results/comparison.json: (right, pairs). `alike`: the mean cosine of one of them is above `MOST_ALIKE`. `words`: how
# often the model with the higher word agreement had the better score.
RECORD: dict[str, tuple[int, int]] = {"all": (34, 45), "clear": (24, 30), "alike": (16, 26), "words": (41, 45)}
NEIGHBORS, MOST_AGREEING = 10, 2_000  # nearest texts, and texts whose nearest are compared


@dataclass(frozen=True)
class HalvesScore:
    """How well a model finds the second half of a text with its first half.

    Attributes:
        log_ranks: (m,) log of the rank of each held-out text's second half among all m, by cosine.
        adapter: The predicted effect of the `LinearAdapter` that the halves choose.
    """

    log_ranks: np.ndarray
    adapter: Prediction

    @property
    def rank(self) -> float:
        """Geometric mean of the ranks; 1 is best."""
        return float(np.exp(self.log_ranks.mean()))

    @property
    def error(self) -> float:
        """Standard error of the mean log rank; 0 for one text."""
        return _standard_error(self.log_ranks)

    @property
    def adapted_rank(self) -> float:
        """Geometric mean of the ranks with the adapter."""
        return self.rank * float(np.exp(-self.adapter.halves))


@dataclass(frozen=True)
class Difference:
    """Two models on the same held-out texts.

    Attributes:
        mean: Mean difference of the log ranks, first model minus second, in nats. Positive if the first is worse.
        error: Standard error of `mean`.
        texts: Number of held-out texts.
    """

    mean: float
    error: float
    texts: int

    @property
    def clear(self) -> bool:
        """Whether there are 50 texts or more, and `mean` is more than two standard errors from 0."""
        return self.texts >= FEWEST and abs(self.mean) > CERTAIN * self.error


def score_halves(test: HalvesTest) -> HalvesScore:
    """Score a model, and predict whether an adapter helps it.

    Raises:
        UsageError: An embedding contains NaN or infinity.
    """
    if not all(np.isfinite(part).all() for part in (test.fit_on, test.first, test.second)):
        raise UsageError("An embedding contains NaN or infinity", needed="finite numbers")
    found = choose([test])
    few = len(test.first) < FEWEST
    return HalvesScore(test.own_log_ranks, found.prediction if few else test.judge(found.adapter))


def difference(one: HalvesScore, other: HalvesScore) -> Difference:
    """Compare two models that were scored on the same held-out texts."""
    gaps = one.log_ranks - other.log_ranks
    return Difference(float(gaps.mean()), _standard_error(gaps), len(gaps))


def _standard_error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0


def chance_rank(texts: int) -> float:
    """Return the geometric mean rank of random embeddings: the mean of the logs of 1 to m, as a rank."""
    return float(np.exp(lgamma(texts + 1) / texts))


def mean_cosine(vectors: np.ndarray) -> float:
    """Return the mean cosine between all pairs of rows (n, d), each with itself included."""
    center = unit_rows(torch.as_tensor(np.asarray(vectors, np.float64))).mean(0)
    return float(center @ center)


def nearest_texts(vectors: np.ndarray) -> np.ndarray:
    """Return the indices (n, 10) of the nearest rows of each row."""
    x = unit_rows(torch.as_tensor(np.asarray(vectors, np.float64)))
    return nearest_rows(x, x, NEIGHBORS, first=0)[0].numpy()


def shared_fraction(one: np.ndarray, other: np.ndarray) -> float:
    """Return the mean fraction of common indices in the rows of two arrays (n, 10)."""
    return float((one[:, :, None] == other[:, None, :]).any(-1).mean())


def word_agreement(texts: Sequence[str], vectors: np.ndarray, seed: int = 0) -> float | None:
    """Return the fraction of the 10 nearest texts that are also among the 10 nearest by TF-IDF.

    Args:
        texts: N texts, of which up to 2,000 are drawn.
        vectors: (N, d) their embeddings.

    Returns:
        A number from 0 to 1; None for fewer than 12 texts, or texts without words.
    """
    drawn = np.random.default_rng(seed).permutation(len(texts))[:MOST_AGREEING]
    if len(drawn) < NEIGHBORS + 2:
        return None
    try:
        words = TfidfVectorizer(stop_words="english", sublinear_tf=True).fit_transform([texts[i] for i in drawn])
    except ValueError:  # an empty vocabulary
        return None
    similarity = (words @ words.T).toarray() - 2 * np.eye(len(drawn))
    by_words = np.argsort(-similarity, axis=1, kind="stable")[:, :NEIGHBORS]
    return shared_fraction(nearest_texts(vectors[drawn]), by_words)


def draw_texts(texts: Sequence[str], most: int, seed: int = 0) -> list[int]:
    """Return the indices of a random sample of at most `most` texts, in order.

    A file of embeddings has either one row per text, or one per sampled text and two per held-out text. The sample is
    one text smaller if these two numbers would be equal.
    """
    if len(texts) <= most:
        return list(range(len(texts)))
    drawn = np.sort(np.random.default_rng(seed).permutation(len(texts))[:most]).tolist()
    held_out = len(hold_out([texts[i] for i in drawn], seed))
    return drawn[:-1] if len(drawn) + 2 * held_out == len(texts) else drawn
