"""Predict without labels which adapter helps, by retrieving the second half of a text from its first."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest

from informin.adapters.linear import LinearAdapter
from informin.adapters.rows import read_rows, unit_rows

HELPS, UNCLEAR, HURTS = VERDICTS = "likely to help", "no evidence", "likely to hurt"
NOT_PREDICTED = "could not be predicted for this model"  # UNCLEAR, because its embeddings are nearly alike
FEWEST = 50  # held-out texts; with fewer, the verdict is UNCLEAR
MOST_HELD_OUT, HELD_OUT = 1_000, 0.2  # number and fraction of the texts
SHORTEST = 4  # words of a text that is cut in halves
CERTAIN = 2.0  # standard errors between the predicted gain and 0
# Mean cosine between texts above which the verdict is UNCLEAR. Encoders that were never trained for embeddings exceed
# it, and for them the halves predict nothing: results/prediction.json.
MOST_ALIKE = 0.7
# Options of the adapters between which `choose` selects. Whitening helps searching documents, and often hurts on short
# texts: results/prediction.json. The first is the safer one.
RECIPES: dict[str, dict[str, float]] = {"short_texts": {"whitening": 0.0, "self_weight": 0.7}, "documents": {}}
# How often the two recipes got each verdict on the report data, and how often the score of the task really rose:
# (given, rose). A test recomputes them from results/prediction.json.
TRACK_RECORD: dict[str, tuple[int, int]] = {HELPS: (14, 11), UNCLEAR: (0, 0), HURTS: (0, 0), NOT_PREDICTED: (6, 5)}


@dataclass(frozen=True)
class Prediction:
    """The expected effect of an adapter.

    Attributes:
        gain: Mean reduction of the log rank of the right half, in nats. Above 0 if the adapter retrieves it earlier.
        error: Standard error of `gain` over the held-out texts.
        texts: Number of held-out texts.
        mean_cosine: Mean cosine between the texts that the adapter was fitted on, before it.
    """

    gain: float
    error: float
    texts: int
    mean_cosine: float = 0.0

    @property
    def reliable(self) -> bool:
        """Whether there are 50 held-out texts or more, and the mean cosine is at most 0.7."""
        return self.texts >= FEWEST and self.mean_cosine <= MOST_ALIKE

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`: the sign of `gain` if it is reliable and more than two standard errors from 0."""
        if not (self.reliable and abs(self.gain) > CERTAIN * self.error):
            return UNCLEAR
        return HELPS if self.gain > 0 else HURTS

    @property
    def rank_change(self) -> str:
        """The mean change of the rank of the right half in percent, with a 95% interval, in words."""
        found = [self.gain, self.gain + CERTAIN * self.error, self.gain - CERTAIN * self.error]
        change, low, high = (f"{100 * np.expm1(-gain):+.0f}%" for gain in found)
        return (
            f"{self.texts:,} held-out texts were cut in halves, and each second half searched with its first. The "
            f"adapter changes the rank of the right half by {change} (95% interval {low} to {high}; a lower rank is "
            "better)."
        )


@dataclass(frozen=True)
class HalvesTest:
    """Embeddings with which to judge an adapter that never sees the texts it is judged on.

    Args:
        fit_on: (n, d) embeddings of whole texts, to fit the adapter on.
        first: (m, d) embeddings of the first halves of other texts.
        second: (m, d) embeddings of their second halves.
    """

    fit_on: np.ndarray
    first: np.ndarray
    second: np.ndarray

    def predict(self, adapter: LinearAdapter) -> Prediction:
        """Fit the adapter on `fit_on` and judge it."""
        if len(self.first) < FEWEST:
            return Prediction(0.0, 0.0, len(self.first))
        return self.judge(adapter.fit(self.fit_on))

    def judge(self, fitted: LinearAdapter) -> Prediction:
        """Compare the ranks of the right halves with and without an adapter that was fitted on other texts."""
        gains = self.own_log_ranks - self.log_ranks(fitted)
        center = unit_rows(torch.as_tensor(np.asarray(self.fit_on, np.float64))).mean(0)
        error = float(gains.std(ddof=1) / len(gains) ** 0.5)
        return Prediction(float(gains.mean()), error, len(gains), float(center @ center))

    @cached_property
    def own_log_ranks(self) -> np.ndarray:
        """The log ranks (m,) without an adapter."""
        return self.log_ranks(None)

    def log_ranks(self, adapter: LinearAdapter | None) -> np.ndarray:
        """Return the log of the rank (m,) of each second half, among all of them, for its first half."""
        first, second = (
            unit_rows(torch.as_tensor(np.asarray(half if adapter is None else adapter.transform(half), np.float64)))
            for half in (self.first, self.second)
        )
        cosines = (first @ second.T).round(decimals=6)
        ranks = 1 + (cosines > cosines.diagonal()[:, None]).sum(-1)
        return ranks.double().log().numpy()


def track_record(verdict: str) -> str:
    """Return how often scores rose in our tests after a verdict, with a 95% Wilson interval, in words.

    Args:
        verdict: A key of `TRACK_RECORD`.
    """
    given, rose = TRACK_RECORD[verdict]
    if not given:
        return "In our tests, no adapter of `fit` had this verdict."
    low, high = binomtest(rose, given).proportion_ci(method="wilson")
    return f"In our tests, scores rose with {rose} of {given} such adapters (95% interval {low:.0%} to {high:.0%})."


def halves(text: str) -> tuple[str, str]:
    """Cut a text in two at its middle word."""
    words = text.split()
    middle = len(words) // 2
    return " ".join(words[:middle]), " ".join(words[middle:])


def hold_out(texts: Sequence[str], seed: int = 0) -> np.ndarray:
    """Return the indices of a fifth of the texts, up to 1,000, that have four words or more.

    Texts that occur twice are never held out: the adapter would be fitted on their copies.
    """
    counts = Counter(texts)
    able = [i for i, text in enumerate(texts) if counts[text] == 1 and len(text.split()) >= SHORTEST]
    number = min(MOST_HELD_OUT, int(HELD_OUT * len(texts)), len(able))
    return np.sort(np.random.default_rng(seed).choice(np.array(able, dtype=np.int64), number, replace=False))


def make_test(
    texts: Sequence[str], vectors: np.ndarray, encode: Callable[[list[str]], np.ndarray], seed: int = 0
) -> HalvesTest:
    """Hold out texts and embed their halves.

    Args:
        texts: N texts.
        vectors: (N, d) their embeddings.
        encode: Function from M texts to embeddings (M, d).
        seed: Seed of the held-out sample.
    """
    held_out = hold_out(texts, seed)
    pairs = [halves(texts[i]) for i in held_out]
    embedded = encode([*(first for first, _ in pairs), *(second for _, second in pairs)]) if pairs else vectors[:0]
    kept = np.delete(np.arange(len(texts)), held_out)
    return HalvesTest(read_rows(vectors, kept), embedded[: len(pairs)], embedded[len(pairs) :])


def choose(test: HalvesTest, **options: Any) -> tuple[str, dict[str, float], Prediction]:
    """Return name, options and prediction of the recipe with the larger predicted gain.

    With fewer than 50 held-out texts, it is `short_texts`, the safer one. With a mean cosine above 0.7, it is
    `documents`: whitening helped all such encoders, and halves of texts predict nothing for them.

    Args:
        options: Options of both adapters, which override those of the recipe.
    """
    recipes = {name: {**own, **options} for name, own in RECIPES.items()}
    predictions = {name: test.predict(LinearAdapter(**own)) for name, own in recipes.items()}
    best = max(predictions, key=lambda name: predictions[name].gain)
    if predictions[best].mean_cosine > MOST_ALIKE:
        best = "documents"
    return best, recipes[best], predictions[best]
