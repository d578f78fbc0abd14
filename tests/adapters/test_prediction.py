"""Predictions without labels: the halves of held-out texts, the verdict and its track record."""

import json

import numpy as np
import pytest

from informin.adapters import prediction
from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import (
    FEWEST,
    HELPS,
    HURTS,
    NOT_PREDICTED,
    RECIPES,
    UNCLEAR,
    VERDICTS,
    HalvesTest,
    Prediction,
    choose,
    halves,
    hold_out,
    make_test,
    track_record,
)
from tests.conftest import ROOT

WIDTH = 12
TEXTS = [f"text number {i} of a file with {i % 7} topics" for i in range(400)]


def noisy_halves(noise: float, topic_noise: float = 0.0, rows: int = 300, seed: int = 0) -> HalvesTest:
    """Halves that share a topic, with noise in the first three dimensions and, more weakly, in all."""
    source = np.random.default_rng(seed)
    topics = source.normal(size=(40, WIDTH))[source.integers(40, size=2 * rows)]

    def noised(x: np.ndarray) -> np.ndarray:
        strong = np.zeros_like(x)
        strong[:, :3] = noise * source.normal(size=(len(x), 3))
        return x + strong + (0.3 + topic_noise) * source.normal(size=x.shape)

    own = topics[:rows] + 0.5 * source.normal(size=(rows, WIDTH))
    return HalvesTest(noised(topics), noised(own), noised(own))


def by_definition(test: HalvesTest, adapter: LinearAdapter | None) -> list[float]:
    first, second = (x if adapter is None else adapter.transform(x) for x in (test.first, test.second))
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (first, second)]
    cosines = unit[0] @ unit[1].T
    return [np.log(1 + sum(cosines[i, j] > cosines[i, i] + 1e-9 for j in range(len(first)))) for i in range(len(first))]


def test_gain_is_the_mean_reduction_of_the_log_rank():
    test = noisy_halves(1.0, rows=60)
    adapter = LinearAdapter().fit(test.fit_on)
    gains = np.subtract(by_definition(test, None), by_definition(test, adapter))
    predicted = test.predict(LinearAdapter())
    assert predicted.gain == pytest.approx(gains.mean(), abs=1e-3) and abs(predicted.gain) > 0.01
    assert predicted.error == pytest.approx(gains.std(ddof=1) / 60**0.5, abs=1e-3) and predicted.texts == 60


def test_removing_noise_is_likely_to_help_and_removing_topics_to_hurt():
    helpful = noisy_halves(3.0).predict(LinearAdapter(whitening=0.5))
    assert helpful.verdict == HELPS and helpful.gain > 0

    source = np.random.default_rng(0)

    class Shuffled(LinearAdapter):
        def transform(self, X):
            return source.permuted(super().transform(X), axis=1)

    harmful = noisy_halves(0.0).predict(Shuffled())
    assert harmful.verdict == HURTS and harmful.gain < 0


@pytest.mark.parametrize(
    ("gain", "error", "texts", "verdict"),
    [
        (0.3, 0.1, 500, HELPS),
        (-0.3, 0.1, 500, HURTS),
        (0.1, 0.1, 500, UNCLEAR),
        (-0.1, 0.1, 500, UNCLEAR),
        (0.3, 0.1, FEWEST - 1, UNCLEAR),
        (0.0, 0.0, 500, UNCLEAR),  # no rank changes
        (0.2, 0.1, 500, UNCLEAR),  # two standard errors, not more
        (float("nan"), 0.1, 500, UNCLEAR),
        (0.1, 0.0, 500, HELPS),
        (-0.1, 0.0, 500, HURTS),
    ],
)
def test_verdict_needs_two_standard_errors_and_fifty_texts(gain, error, texts, verdict):
    assert Prediction(gain, error, texts).verdict == verdict


def test_embeddings_that_are_all_alike_give_no_evidence():
    assert Prediction(0.3, 0.1, 500, mean_cosine=0.69).verdict == HELPS
    assert Prediction(0.3, 0.1, 500, mean_cosine=0.71).verdict == UNCLEAR
    test = noisy_halves(3.0)
    alike = HalvesTest(test.fit_on + 20, test.first, test.second)
    units = alike.fit_on / np.linalg.norm(alike.fit_on, axis=1, keepdims=True)
    predicted = alike.predict(LinearAdapter())
    assert predicted.mean_cosine == pytest.approx((units @ units.T).mean()) and not predicted.reliable


def test_too_few_texts_give_no_evidence_instead_of_nan():
    test = noisy_halves(3.0, rows=1)
    assert test.predict(LinearAdapter()) == Prediction(0.0, 0.0, 1)
    assert choose(test)[0] == "short_texts"


def test_texts_are_cut_at_the_middle_word():
    assert halves("one two  three four five") == ("one two", "three four five")


def test_copies_and_short_texts_are_not_held_out():
    texts = [*TEXTS, *TEXTS[:100], *["too short here"] * 50, *[f"also short {i}" for i in range(50)]]
    held_out = hold_out(texts)
    assert len(held_out) == 120 and len(set(held_out)) == 120
    assert all(texts.count(texts[i]) == 1 and len(texts[i].split()) >= 4 for i in held_out)
    assert hold_out(texts, seed=1).tolist() != held_out.tolist() == hold_out(texts).tolist()
    assert len(hold_out([f"one two three {i}" for i in range(9_000)])) == 1_000


def test_short_texts_give_no_evidence_instead_of_an_error():
    short = ["a dog", "a cat", "the bird", "two words"]
    test = make_test(short, np.eye(4), lambda parts: np.eye(4)[: len(parts)])
    assert (len(test.fit_on), len(test.first)) == (4, 0) and test.predict(LinearAdapter()).verdict == UNCLEAR


def test_adapter_is_fitted_on_other_texts_than_it_is_judged_on():
    vectors, seen = np.arange(400.0)[:, None].repeat(3, 1), []

    def encode(parts: list[str]) -> np.ndarray:
        seen.extend(parts)
        return np.zeros((len(parts), 3))

    test = make_test(TEXTS, vectors, encode)
    held_out = hold_out(TEXTS)
    assert test.fit_on[:, 0].tolist() == [i for i in range(400) if i not in held_out]
    assert len(test.first) == len(test.second) == len(held_out) == 80
    assert [f"{a} {b}" for a, b in zip(seen[:80], seen[80:])] == [TEXTS[i] for i in held_out]


@pytest.mark.parametrize(
    ("short", "long", "mean_cosine", "expected"),
    [
        (0.1, 0.4, 0.0, "documents"),
        (-0.1, -0.4, 0.7, "short_texts"),
        (0.1, 0.4, 0.71, "documents"),
        (0.4, 0.1, 0.71, "documents"),  # nearly alike
    ],
)
def test_the_recipe_with_the_larger_gain_is_chosen(monkeypatch, short, long, mean_cosine, expected):
    gains = {0.0: short, 0.3: long}

    def predict(self, adapter):
        return Prediction(gains[adapter.whitening], adapter.n_neighbors, 100, mean_cosine)

    monkeypatch.setattr(HalvesTest, "predict", predict)
    name, options, predicted = choose(noisy_halves(1.0, rows=60), n_neighbors=4)
    assert (name, options) == (expected, {**RECIPES[expected], "n_neighbors": 4})
    assert predicted == Prediction(gains[0.3 if expected == "documents" else 0.0], 4, 100, mean_cosine)


def test_options_override_both_recipes(monkeypatch):
    given, judged = {"whitening": 0.5, "self_weight": 1.0}, []

    def predict(self, adapter):
        judged.append((adapter.whitening, adapter.self_weight))
        return Prediction(0.1, 0.1, 100)

    monkeypatch.setattr(HalvesTest, "predict", predict)
    _, options, _ = choose(noisy_halves(1.0, rows=60), **given)
    assert options == given and judged == [(0.5, 1.0)] * 2


def test_the_track_record_is_that_of_the_maps_that_fit_writes():
    cells = json.loads((ROOT / "results/prediction.json").read_text())["cells"]
    record = dict.fromkeys((*VERDICTS, NOT_PREDICTED), (0, 0))
    for cell in cells:
        if cell["report"] and cell["map"] in {f"LinearAdapter, {recipe}" for recipe in RECIPES}:
            gain, error, _, mean_cosine = cell["predicted"]["halves"]
            predicted = Prediction(gain, error, FEWEST, mean_cosine)
            given, rose = record[verdict := predicted.verdict if predicted.reliable else NOT_PREDICTED]
            record[verdict] = (given + 1, rose + (cell["gain"] > 0))
    assert record == prediction.TRACK_RECORD
    page = (ROOT / "docs/search.md").read_text(encoding="utf-8")
    for verdict, (given, rose) in record.items():
        assert (f"| {rose} of {given} " if given else "| not given |") in page.partition(f"| {verdict} |")[2].split(
            "\n"
        )[0]


def test_the_track_record_has_a_wilson_interval(monkeypatch):
    monkeypatch.setitem(prediction.TRACK_RECORD, HELPS, (10, 9))
    p, n, z = 0.9, 10, 1.959964
    middle, half = p + z**2 / (2 * n), z * (p * (1 - p) / n + z**2 / (4 * n**2)) ** 0.5
    low, high = ((middle + sign * half) / (1 + z**2 / n) for sign in (-1, 1))
    assert f"9 of 10 such adapters (95% interval {low:.0%} to {high:.0%})" in track_record(HELPS)
    monkeypatch.setitem(prediction.TRACK_RECORD, HELPS, (0, 0))
    assert track_record(HELPS) == "In our tests, no adapter of `fit` had this verdict."
