"""Predictions without labels: the halves of held-out texts, the verdict and its track record."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from informin.adapters import prediction
from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import (
    FEWEST,
    FOLDS,
    HELPS,
    HURTS,
    PRESETS,
    UNCLEAR,
    VERDICTS,
    HalvesTest,
    Prediction,
    Width,
    choose,
    halves,
    hold_out,
    hold_out_in_turn,
    make_test,
    make_tests,
    predict,
    short_query,
    shortest,
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
    predicted = predict([test], LinearAdapter())
    assert predicted.gain == pytest.approx(gains.mean(), abs=1e-3) and abs(predicted.gain) > 0.01
    assert predicted.error == pytest.approx(gains.std(ddof=1) / 60**0.5, abs=1e-3) and predicted.texts == 60


def test_removing_noise_is_likely_to_help_and_removing_topics_to_hurt():
    helpful = predict([noisy_halves(3.0)], LinearAdapter(whitening=0.5))
    assert helpful.verdict == HELPS and helpful.gain > 0

    source = np.random.default_rng(0)

    class Shuffled(LinearAdapter):
        def transform(self, X):
            return source.permuted(super().transform(X), axis=1)

    harmful = predict([noisy_halves(0.0)], Shuffled())
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


def test_too_few_texts_give_no_evidence_instead_of_nan():
    test = noisy_halves(3.0, rows=1)
    assert predict([test], LinearAdapter()) == Prediction(0.0, 0.0, 1)
    assert choose([test]).preset == "short_texts"


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
    assert (len(test.fit_on), len(test.first)) == (4, 0) and predict([test], LinearAdapter()).verdict == UNCLEAR


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


def test_few_texts_are_held_out_in_turn():
    turns = hold_out_in_turn(TEXTS)
    assert [len(turn) for turn in turns] == [80] * 5 and sorted(np.concatenate(turns)) == list(range(400))
    assert turns[0].tolist() == hold_out(TEXTS).tolist()
    assert [len(turn) for turn in hold_out_in_turn([f"one two three {i}" for i in range(1_460)])] == [292] * 4
    assert [len(turn) for turn in hold_out_in_turn([f"one two three {i}" for i in range(9_000)])] == [1_000]
    assert [len(turn) for turn in hold_out_in_turn(TEXTS[:249])] == [49]
    short = hold_out_in_turn([*TEXTS[:150], *["a b"] * 250])
    assert [len(turn) for turn in short] == [80, 70] and max(np.concatenate(short)) < 150


def test_each_turn_has_its_own_queries_and_texts_to_fit_on():
    vectors, asked = np.arange(400.0)[:, None].repeat(3, 1), []

    def encode(parts: list[str]) -> np.ndarray:
        return np.array(
            [[float(next(word for word in reversed(part.split()) if word.isdigit()))] * 3 for part in parts]
        )

    def number(parts: list[str]) -> np.ndarray:
        asked.extend(parts)
        return np.arange(float(len(parts)))[:, None].repeat(3, 1)

    texts = [f"{i} word {i} other words {i}" for i in range(400)]
    tests, turns = make_tests(texts, vectors, encode, number), hold_out_in_turn(texts)
    assert len(tests) == 5
    for turn, test in zip(turns, tests):
        assert sorted([*turn, *test.fit_on[:, 0]]) == list(range(400))
        for part in (test.first, test.second, test.whole):
            assert part[:, 0].tolist() == turn.tolist()
    queries = np.concatenate([test.queries for test in tests])[:, 0]
    assert queries.tolist() == list(range(400))
    assert all(query in texts[i] for query, i in zip(asked, np.concatenate(turns)))


def test_a_prediction_is_over_the_texts_of_all_turns():
    tests = [noisy_halves(1.0, rows=60), noisy_halves(1.0, rows=80, seed=1)]
    adapter = LinearAdapter()
    found = predict(tests, adapter)
    gains = [predict([test], LinearAdapter()).gain for test in tests]
    assert found.texts == 140 and found.gain == pytest.approx((60 * gains[0] + 80 * gains[1]) / 140)
    np.testing.assert_array_equal(adapter.coef_, LinearAdapter().fit(tests[0].fit_on).coef_)
    assert predict([noisy_halves(1.0, rows=30)] * 2, LinearAdapter()).texts == 60


def gains_of(monkeypatch, by_whitening: dict[float, np.ndarray]) -> list:
    """Let adapters have the given gains (m,) by their whitening, and return those that were asked for."""
    asked = []

    def gains(self, adapter):
        asked.append((adapter.whitening, adapter.self_weight))
        return np.stack([by_whitening[adapter.whitening] / 2, by_whitening[adapter.whitening]], axis=1)

    monkeypatch.setattr(HalvesTest, "gains", gains)
    return asked


@pytest.mark.parametrize(("short", "long", "expected"), [(0.1, 0.4, "documents"), (-0.1, -0.4, "short_texts")])
def test_the_preset_with_the_larger_gain_is_chosen(monkeypatch, short, long, expected):
    gains_of(monkeypatch, {0.0: np.full(60, short), 0.3: np.full(60, long)})
    found = choose([noisy_halves(1.0, rows=60)], n_neighbors=4)
    assert found.preset == expected
    assert found.adapter.get_params() == LinearAdapter(**PRESETS[expected], n_neighbors=4).get_params()
    assert found.prediction == Prediction(
        pytest.approx(max(short, long)), pytest.approx(0), 60, pytest.approx(max(short, long) / 2)
    )


def test_texts_that_choose_do_not_judge(monkeypatch):
    rows = np.arange(60)
    assert sorted([*rows[FOLDS[0]], *rows[FOLDS[1]]]) == rows.tolist()
    even = np.where(rows % 2, -1.0, 1.0)  # each preset gains on the texts of one fold, and loses on the others
    gains_of(monkeypatch, {0.0: even, 0.3: -even + 0.1})
    assert choose([noisy_halves(1.0, rows=60)]).prediction.gain == pytest.approx(-0.95)


def test_short_queries_count_half():
    plain = noisy_halves(1.0, rows=60)
    queries, whole = noisy_halves(2.0, rows=60, seed=1).first, noisy_halves(2.0, rows=60, seed=1).second
    test = replace(plain, queries=queries, whole=whole)
    adapter = LinearAdapter().fit(plain.fit_on)
    other = HalvesTest(plain.fit_on, queries, whole).judge(adapter)
    both, halved = test.judge(adapter), plain.judge(adapter)
    assert both.gain == pytest.approx(halved.gain + 0.5 * other.gain) and abs(other.gain) > 0.01
    assert both.halves == halved.gain == halved.halves


def test_short_queries_are_consecutive_words_of_their_text():
    source = random.Random(0)
    long = " ".join(f"w{i}" for i in range(40))
    lengths = set()
    for _ in range(200):
        query = short_query(long, source)
        assert query in long
        lengths.add(len(query.split()))
    assert lengths == set(range(5, 13))
    assert {len(short_query("a b c d e f g", source).split()) for _ in range(50)} == {4}


def test_options_override_both_presets(monkeypatch):
    given = {"whitening": 0.5, "self_weight": 1.0}
    asked = gains_of(monkeypatch, {0.5: np.full(60, 0.1)})
    adapter = choose([noisy_halves(1.0, rows=60)], **given).adapter
    assert {name: adapter.get_params()[name] for name in given} == given and asked == [(0.5, 1.0)] * 2


def test_the_track_record_is_that_of_the_maps_that_fit_writes():
    cells = json.loads((ROOT / "results/prediction.json").read_text())["cells"]
    cells = [cell for cell in cells if cell["report"]]
    assert {cell["map"] for cell in cells} == {"auto", *PRESETS}, "only adapters that fit writes"
    for found, maps in ((prediction.TRACK_RECORD, ["auto"]), (prediction.PRESET_RECORD, list(PRESETS))):
        record = dict.fromkeys(VERDICTS, (0, 0))
        for cell in cells:
            if cell["map"] in maps:
                gain, error, verdict = cell["predicted"]["both"]
                assert Prediction(gain, error, FEWEST).verdict == verdict
                given, rose = record[verdict]
                record[verdict] = (given + 1, rose + (cell["gain"] > 0))
        assert record == found
    page = (ROOT / "docs/search.md").read_text(encoding="utf-8")
    for verdict, (given, rose) in prediction.TRACK_RECORD.items():
        row = page.partition(f"| {verdict} |")[2].split("\n")[0]
        assert f"| {rose} of {given} " in row if given else "| not given |" in row


def test_the_track_record_has_a_wilson_interval(monkeypatch):
    monkeypatch.setitem(prediction.TRACK_RECORD, HELPS, (10, 9))
    p, n, z = 0.9, 10, 1.959964
    middle, half = p + z**2 / (2 * n), z * (p * (1 - p) / n + z**2 / (4 * n**2)) ** 0.5
    low, high = ((middle + sign * half) / (1 + z**2 / n) for sign in (-1, 1))
    assert f"9 of 10 such adapters (95% interval {low:.0%} to {high:.0%})" in track_record(HELPS, chosen=True)
    monkeypatch.setitem(prediction.PRESET_RECORD, HELPS, (0, 0))
    assert track_record(HELPS, chosen=False) == "In our tests, no adapter of `fit` had this verdict."


def test_the_curve_judges_the_first_dimensions():
    test = noisy_halves(1.0)
    adapter = LinearAdapter().fit(test.fit_on)
    curve = test.curve(adapter)
    assert [width.dimension for width in curve] == [12, 9, 6, 4, 3, 2, 1]
    assert curve[0].loss == curve[0].error == 0 and curve[0].small
    cut = LinearAdapter(n_components=3).fit(test.fit_on)
    lost = np.subtract(by_definition(test, cut), by_definition(test, adapter))
    assert curve[4].loss == pytest.approx(lost.mean(), abs=1e-3)
    assert curve[4].error == pytest.approx(lost.std(ddof=1) / 300**0.5, abs=1e-3)
    assert curve[4].rank == pytest.approx(np.exp(np.mean(by_definition(test, cut))), rel=1e-3)
    assert not noisy_halves(0.0).curve(LinearAdapter().fit(noisy_halves(0.0).fit_on))[-1].small
    assert noisy_halves(1.0, rows=40).curve(adapter) == []


def test_the_curve_counts_short_queries_by_half():
    plain, other = noisy_halves(1.0), noisy_halves(2.0, seed=1)
    test = replace(plain, queries=other.first, whole=other.second)
    adapter = LinearAdapter().fit(plain.fit_on)
    cut = adapter.cut(3)
    lost = [one.log_ranks(cut).mean() - one.log_ranks(adapter).mean() for one in (plain, other)]
    assert test.curve(adapter)[4].loss == pytest.approx(lost[0] + 0.5 * lost[1]) != pytest.approx(lost[0])


def test_the_shortest_dimension_has_a_small_loss_as_have_all_larger_ones():
    def curve(*losses: float) -> list[Width]:
        return [Width(8 - i, 1.0, loss, 0.01) for i, loss in enumerate(losses)]

    assert shortest(curve(0.0, 0.05, 0.1, 0.11)) == 6
    assert shortest(curve(0.0, 0.3, 0.0)) == 8
    assert shortest(curve(0.0, -0.5, 0.0)) == 6


def test_the_stored_cells_meet_what_the_docs_promise():
    """The choice is the better preset in nine of ten cells, and "likely to help" never loses more than 0.5 points."""
    cells = json.loads((ROOT / "results/prediction.json").read_text())["cells"]
    gains = {(cell["model"], cell["data"], cell["map"]): cell["gain"] for cell in cells}
    auto = [cell for cell in cells if cell["map"] == "auto"]
    best = [max(gains[cell["model"], cell["data"], preset] for preset in PRESETS) for cell in auto]
    assert np.mean([cell["gain"] == most for cell, most in zip(auto, best)]) >= 0.9
    helps = [cell["gain"] for cell in auto if cell["predicted"]["both"][2] == HELPS]
    assert np.mean([gain > 0 for gain in helps]) >= 0.9 and min(helps) >= -0.5
