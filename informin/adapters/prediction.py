"""Predict without labels which adapter helps, by retrieving parts of texts and texts from a few of their words."""

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest

from informin.adapters.linear import LinearAdapter
from informin.adapters.rows import read_rows, unit_rows

HELPS, UNCLEAR, HURTS = VERDICTS = "likely to help", "no evidence", "likely to hurt"
FEWEST = 50  # held-out texts; with fewer, the verdict is UNCLEAR
MOST_HELD_OUT, HELD_OUT = 1_000, 0.2  # number and fraction of the texts
MOST_TURNS = 5  # samples that are held out in turn, if there are few texts
FOLDS = slice(0, None, 2), slice(1, None, 2)  # of the held-out texts: one chooses, the other judges
SHORTEST = 4  # words of a text that is cut in halves
SHARES = (1, 3 / 4, 1 / 2, 3 / 8, 1 / 4, 3 / 16, 1 / 8, 3 / 32, 1 / 16)  # of the dimensions, for a curve
CERTAIN = 2.0  # standard errors between the predicted gain and 0
# Weight of short queries against halves in the predicted gain. Halves alone fail for encoders that were never trained
# for embeddings, short queries alone for titles and questions: results/prediction.json.
QUERY_WEIGHT = 0.5
# Predicted loss of fewer dimensions that `shortest` accepts, in nats. The measured loss of nDCG@10 was then at most 1.1
# points on CISI and NPL: results/search.md. Halves alone allow losses of 8 points.
SMALL_LOSS = 0.1
QUERY = (5, 12)  # words of a short query, at most half of its text
# Mean cosine between texts above which `compare` says that ranks tell little.
MOST_ALIKE = 0.7
# Options of the adapters between which `choose` selects. Whitening helps searching documents, and often hurts on short
# texts: results/prediction.json. The first is the safer one.
PRESETS: dict[str, dict[str, float]] = {"short_texts": {"whitening": 0.0, "self_weight": 0.7}, "documents": {}}
# How often auto got each verdict on the report data, and how often the score of the task really rose: (given, rose).
# A test recomputes them from results/prediction.json.
TRACK_RECORD: dict[str, tuple[int, int]] = {HELPS: (8, 8), UNCLEAR: (2, 2), HURTS: (0, 0)}
# The same for the two presets, without a choice.
PRESET_RECORD: dict[str, tuple[int, int]] = {HELPS: (13, 10), UNCLEAR: (4, 3), HURTS: (3, 1)}


@dataclass(frozen=True)
class Prediction:
    """The expected effect of an adapter.

    Attributes:
        gain: Mean reduction of the log rank of the right half, plus half of that of the right text for a short query,
            in nats. Above 0 if the adapter retrieves them earlier.
        error: Standard error of `gain` over the held-out texts.
        texts: Number of held-out texts.
        halves: The first part of `gain`.
    """

    gain: float
    error: float
    texts: int
    halves: float = 0.0

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`: the sign of `gain` if it is over two standard errors from 0, with 50 texts or more."""
        if self.texts < FEWEST or not abs(self.gain) > CERTAIN * self.error:
            return UNCLEAR
        return HELPS if self.gain > 0 else HURTS

    @property
    def queries(self) -> float:
        """Mean reduction of the log rank of the right text for a short query, in nats."""
        return (self.gain - self.halves) / QUERY_WEIGHT

    @property
    def rank_change(self) -> str:
        """The mean changes of the ranks in percent, and the predicted gain with its 95% interval, in words."""
        halved, queried = (f"{100 * np.expm1(-gain):+.0f}%" for gain in (self.halves, self.queries))
        low, high = (f"{self.gain + sign * CERTAIN * self.error:+.2f}" for sign in (-1, 1))
        return (
            f"Tested on {self.texts:,} held-out texts (lower ranks are better): when the query is the first half of a "
            f"text, the rank of its second half changes by {halved}; when it is a few words, the rank of the text "
            f"changes by {queried}. Predicted gain: {self.gain:+.2f} (95% interval {low} to {high})."
        )


@dataclass(frozen=True)
class Width:
    """The predicted quality of the first dimensions of an adapter.

    Attributes:
        dimension: Number of dimensions.
        rank: Geometric mean of the ranks of the right half; 1 is best.
        loss: Loss of predicted gain against all dimensions, in nats: the mean increase of the log rank of the right
            half, plus half of that of the right text for a short query.
        error: Standard error of `loss` over the held-out texts.
    """

    dimension: int
    rank: float
    loss: float
    error: float

    @property
    def small(self) -> bool:
        """Whether the loss is at most 0.1."""
        return self.loss <= SMALL_LOSS


@dataclass(frozen=True)
class Choice:
    """A preset that was chosen.

    Attributes:
        preset: Name of the preset.
        adapter: Its adapter, fitted on the texts of the first test that were not held out.
        prediction: Its predicted effect.
    """

    preset: str
    adapter: LinearAdapter
    prediction: Prediction


@dataclass(frozen=True)
class HalvesTest:
    """Embeddings with which to judge an adapter that never sees the texts it is judged on.

    Args:
        fit_on: (n, d) embeddings of whole texts, to fit the adapter on.
        first: (m, d) embeddings of the first halves of other texts.
        second: (m, d) embeddings of their second halves.
        queries: (m, d) embeddings of a few words of each of these texts; None to judge by halves alone.
        whole: (m, d) embeddings of these texts.
    """

    fit_on: np.ndarray
    first: np.ndarray
    second: np.ndarray
    queries: np.ndarray | None = None
    whole: np.ndarray | None = None

    def judge(self, fitted: LinearAdapter) -> Prediction:
        """Compare the ranks of the right texts with and without an adapter that was fitted on others."""
        return prediction_of(self.gains(fitted))

    def gains(self, fitted: LinearAdapter) -> np.ndarray:
        """Return, for each held-out text, what halves gain and what is predicted in all (m, 2)."""
        halved = self.own_log_ranks - self.log_ranks(fitted)
        if self.queries is None:
            return np.stack([halved, halved], axis=1)
        queried = self.own_query_ranks - self.query_ranks(fitted)
        return np.stack([halved, halved + QUERY_WEIGHT * queried], axis=1)

    def curve(self, fitted: LinearAdapter) -> list[Width]:
        """Return the predicted quality of an adapter by the number of dimensions, all of them first.

        Returns:
            All dimensions, then 3/4, 1/2, 3/8, 1/4, 3/16, 1/8, 3/32 and 1/16 of them; empty with fewer than 50 texts.
        """
        if len(self.first) < FEWEST:
            return []
        whole, most = self.gains(fitted)[:, 1], len(fitted.coef_)
        found = []
        for dimension in sorted({max(1, round(most * share)) for share in SHARES}, reverse=True):
            halved, total = self.gains(fitted.cut(dimension)).T
            ranks, lost = self.own_log_ranks - halved, whole - total
            error = float(lost.std(ddof=1) / len(lost) ** 0.5)
            found.append(Width(dimension, float(np.exp(ranks.mean())), float(lost.mean()), error))
        return found

    @cached_property
    def own_log_ranks(self) -> np.ndarray:
        """The log ranks (m,) without an adapter."""
        return self.log_ranks(None)

    @cached_property
    def own_query_ranks(self) -> np.ndarray:
        """The log ranks (m,) of short queries without an adapter."""
        return self.query_ranks(None)

    def log_ranks(self, adapter: LinearAdapter | None) -> np.ndarray:
        """Return the log of the rank (m,) of each second half, among all of them, for its first half."""
        return _adapted_log_ranks(self.first, self.second, adapter)

    def query_ranks(self, adapter: LinearAdapter | None) -> np.ndarray:
        """Return the log of the rank (m,) of each held-out text, among all of them, for its short query."""
        assert self.queries is not None and self.whole is not None
        return _adapted_log_ranks(self.queries, self.whole, adapter)


def prediction_of(gains: np.ndarray) -> Prediction:
    """Return the prediction from the gains (m, 2) of held-out texts."""
    halved, total = gains.T
    error = float(total.std(ddof=1) / len(total) ** 0.5)
    return Prediction(float(total.mean()), error, len(total), float(halved.mean()))


def _adapted_log_ranks(queries: np.ndarray, texts: np.ndarray, adapter: LinearAdapter | None) -> np.ndarray:
    return log_ranks(*(part if adapter is None else adapter.transform(part) for part in (queries, texts)))


def log_ranks(queries: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """Return the log of the rank (m,) of each text, among all (m, d), for its query.

    Tied texts get their average rank, so that equal vectors and zeros do not rank first.
    """
    x, y = (unit_rows(torch.as_tensor(np.asarray(part, np.float64))) for part in (queries, texts))
    cosines = (x @ y.T).round(decimals=6)
    own = cosines.diagonal()[:, None]
    ranks = 1 + (cosines > own).sum(-1) + ((cosines == own).sum(-1) - 1) / 2
    return ranks.double().log().numpy()


def shortest(curve: Sequence[Width]) -> int:
    """Return the smallest number of dimensions that, like all larger ones, has a small predicted loss.

    Args:
        curve: The result of `HalvesTest.curve`, with one entry or more.
    """
    found = curve[0].dimension
    for width in curve:
        if not width.small:
            break
        found = width.dimension
    return found


def track_record(verdict: str, chosen: bool) -> str:
    """Return how often scores rose in our tests after a verdict, with a 95% Wilson interval, in words.

    Args:
        verdict: One of `VERDICTS`.
        chosen: Whether `choose` chose the preset.
    """
    given, rose = (TRACK_RECORD if chosen else PRESET_RECORD)[verdict]
    if not given:
        return "In our tests, no adapter of `fit` had this verdict."
    low, high = binomtest(rose, given).proportion_ci(method="wilson")
    return f"In our tests, scores rose with {rose} of {given} such adapters (95% interval {low:.0%} to {high:.0%})."


def halves(text: str) -> tuple[str, str]:
    """Cut a text in two at its middle word."""
    words = text.split()
    middle = len(words) // 2
    return " ".join(words[:middle]), " ".join(words[middle:])


def short_query(text: str, source: random.Random) -> str:
    """Return 5 to 12 consecutive words of a text, at most half of them."""
    words = text.split()
    length = min(source.randint(*QUERY), max(1, (len(words) + 1) // 2))
    start = source.randint(0, len(words) - length)
    return " ".join(words[start : start + length])


def hold_out(texts: Sequence[str], seed: int = 0) -> np.ndarray:
    """Return the indices of a fifth of the texts, up to 1,000, that have four words or more.

    Texts that occur twice are never held out: the adapter would be fitted on their copies.
    """
    able = _able(texts)
    number = min(MOST_HELD_OUT, int(HELD_OUT * len(texts)), len(able))
    return np.sort(np.random.default_rng(seed).choice(able, number, replace=False))


def hold_out_in_turn(texts: Sequence[str], seed: int = 0, most: int = MOST_TURNS) -> list[np.ndarray]:
    """Return samples without a common text until they have 1,000 texts, at most five or `most`.

    The first is that of `hold_out`. If it has fewer than 50 texts, which are too few for a verdict, it is the only one.
    """
    first = hold_out(texts, seed)
    if len(first) < FEWEST:
        return [first]
    rest = np.random.default_rng(seed).permutation(np.setdiff1d(_able(texts), first))
    turns = min(most, math.ceil(MOST_HELD_OUT / len(first))) - 1
    others = [np.sort(rest[turn * len(first) : (turn + 1) * len(first)]) for turn in range(turns)]
    return [first, *(other for other in others if len(other))]


def _able(texts: Sequence[str]) -> np.ndarray:
    """Return the indices of the texts that can be held out."""
    counts = Counter(texts)
    found = [i for i, text in enumerate(texts) if counts[text] == 1 and len(text.split()) >= SHORTEST]
    return np.array(found, dtype=np.int64)


def make_test(
    texts: Sequence[str], vectors: np.ndarray, encode: Callable[[list[str]], np.ndarray], seed: int = 0
) -> HalvesTest:
    """Hold out texts, and embed their halves.

    Args:
        texts: N texts.
        vectors: (N, d) their embeddings.
        encode: Function from M texts to embeddings (M, d).
        seed: Seed of the held-out sample.
    """
    return _tests(texts, vectors, [hold_out(texts, seed)], encode)[0]


def make_tests(
    texts: Sequence[str],
    vectors: np.ndarray,
    encode: Callable[[list[str]], np.ndarray],
    encode_query: Callable[[list[str]], np.ndarray],
    seed: int = 0,
    most: int = MOST_TURNS,
) -> list[HalvesTest]:
    """Hold out texts in turn, and embed their halves and a short query for each.

    Args:
        texts: N texts.
        vectors: (N, d) their embeddings.
        encode: Function from M texts to embeddings (M, d).
        encode_query: As `encode`, for short queries.
        seed: Seed of the held-out samples.
        most: Largest number of samples.
    """
    turns = hold_out_in_turn(texts, seed, most)
    tests, source = _tests(texts, vectors, turns, encode), random.Random(seed)
    if not len(turns[0]):
        return tests
    queries = encode_query([short_query(texts[i], source) for turn in turns for i in turn])
    ends = np.cumsum([len(turn) for turn in turns])[:-1]
    parts = zip(tests, turns, np.split(queries, ends))
    return [replace(test, queries=own, whole=read_rows(vectors, turn)) for test, turn, own in parts]


def _tests(
    texts: Sequence[str], vectors: np.ndarray, turns: list[np.ndarray], encode: Callable[[list[str]], np.ndarray]
) -> list[HalvesTest]:
    """Return a test by halves for each sample of texts that is held out."""
    pairs = [halves(texts[i]) for turn in turns for i in turn]
    embedded = encode([*(first for first, _ in pairs), *(second for _, second in pairs)]) if pairs else vectors[:0]
    ends, found = np.cumsum([len(turn) for turn in turns])[:-1], []
    sides = (np.split(side, ends) for side in (embedded[: len(pairs)], embedded[len(pairs) :]))
    for turn, first, second in zip(turns, *sides):
        kept = np.delete(np.arange(len(texts)), turn)
        found.append(HalvesTest(read_rows(vectors, kept), first, second))
    return found


def predict(tests: Sequence[HalvesTest], adapter: LinearAdapter) -> Prediction:
    """Fit an adapter on the texts of each test that are not held out, and judge it."""
    texts = sum(len(test.first) for test in tests)
    if texts < FEWEST:
        return Prediction(0.0, 0.0, texts)
    return prediction_of(_gains(tests, adapter))


def _gains(tests: Sequence[HalvesTest], adapter: LinearAdapter) -> np.ndarray:
    """Return the gains (m, 2) of all held-out texts. The adapter stays fitted on those of the first test."""
    return np.concatenate([test.gains(adapter.fit(test.fit_on)) for test in tests[::-1]])


def choose(tests: Sequence[HalvesTest], **options: Any) -> Choice:
    """Return the preset with the larger predicted gain.

    The texts that judge are not those that choose: each half of the held-out texts judges the preset that the other
    half chooses. With fewer than 50 held-out texts, it is `short_texts`, the safer one.

    Args:
        tests: One test or more.
        options: Options of both adapters, which override those of the preset.
    """
    adapters = {name: LinearAdapter(**{**own, **options}) for name, own in PRESETS.items()}
    if sum(len(test.first) for test in tests) < FEWEST:
        best = next(iter(adapters))
        return Choice(best, adapters[best], predict(tests, adapters[best]))
    gains = {name: _gains(tests, adapter) for name, adapter in adapters.items()}
    best, predicted = best_of(gains)
    return Choice(best, adapters[best], predicted)


def best_of(gains: Mapping[str, np.ndarray]) -> tuple[str, Prediction]:
    """Return the name with the largest mean gain, and its prediction by texts that did not choose.

    Args:
        gains: For each name, the result (m, 2) of `HalvesTest.gains`.
    """

    def best(texts: slice) -> str:
        return max(gains, key=lambda name: gains[name][texts, 1].mean())

    judged = np.concatenate([gains[best(chooser)][judge] for chooser, judge in (FOLDS, FOLDS[::-1])])
    return best(slice(None)), prediction_of(judged)
