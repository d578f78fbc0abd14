"""The criterion that compares models: ranks of second halves, their differences, and its track record."""

import json

import numpy as np
import pytest

from informin.adapters.halves import (
    RECORD,
    Difference,
    HalvesScore,
    chance_rank,
    difference,
    draw_texts,
    mean_cosine,
    score_halves,
    shared_fraction,
    word_agreement,
)
from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import FEWEST, HalvesTest, Prediction, hold_out, log_ranks
from tests.adapters.test_prediction import TEXTS, by_definition, noisy_halves
from tests.conftest import ROOT, raises_usage


def scored(log_ranks: np.ndarray) -> HalvesScore:
    return HalvesScore(log_ranks, Prediction(0.0, 0.0, len(log_ranks)))


def test_rank_is_a_geometric_mean_with_and_without_the_adapter():
    test = noisy_halves(2.0, rows=80)
    score, adapter = score_halves(test), LinearAdapter().fit(test.fit_on)
    assert score.rank == pytest.approx(np.exp(np.mean(by_definition(test, None))), rel=1e-3)
    assert score.adapted_rank == pytest.approx(np.exp(np.mean(by_definition(test, adapter))), rel=1e-3)
    assert score.error == pytest.approx(np.std(by_definition(test, None), ddof=1) / 80**0.5, rel=1e-3)
    assert score.adapted_rank < 0.97 * score.rank and score.adapter.gain > 0


def test_the_model_with_less_noise_has_the_lower_rank():
    better, worse = (score_halves(noisy_halves(noise)) for noise in (0.5, 2.0))
    gap = difference(worse, better)
    assert better.rank < worse.rank and gap.mean == pytest.approx(np.log(worse.rank / better.rank)) and gap.clear


def test_differences_are_paired_and_clear_from_two_errors_and_fifty_texts():
    source = np.random.default_rng(0)
    one = source.normal(size=200)
    paired = difference(scored(one + 0.1), scored(one + 0.01 * source.normal(size=200)))
    assert paired.clear and paired.mean == pytest.approx(0.1, abs=0.01) and paired.error < 0.001
    assert not difference(scored(one), scored(one)).clear
    assert Difference(0.3, 0.1, FEWEST).clear and not Difference(0.3, 0.1, FEWEST - 1).clear
    assert Difference(-0.3, 0.1, 99).clear and not Difference(-0.19, 0.1, 99).clear
    assert difference(scored(one[:1]), scored(one[:1])).error == 0


def test_chance_is_the_rank_of_random_embeddings():
    source = np.random.default_rng(0)
    random = HalvesTest(*(source.normal(size=(2000, 4)) for _ in range(3)))
    assert np.exp(random.log_ranks(None).mean()) == pytest.approx(chance_rank(2000), rel=0.05)
    assert chance_rank(1) == 1


def test_nan_is_refused():
    test = noisy_halves(1.0, rows=60)
    test.second[3, 2] = np.nan
    with raises_usage(found="contains NaN"):
        score_halves(test)


def test_mean_cosine_is_that_of_unit_rows():
    x = np.random.default_rng(0).normal(size=(30, 5)) + 1
    units = x / np.linalg.norm(x, axis=1, keepdims=True)
    assert mean_cosine(x * np.arange(1, 31)[:, None]) == pytest.approx((units @ units.T).mean())


def test_sample_is_random_and_its_rows_are_never_mistaken_for_those_of_all_texts():
    assert draw_texts(TEXTS, 400) == draw_texts(TEXTS, 999) == list(range(400))
    drawn = draw_texts(TEXTS, 100)
    assert len(set(drawn)) == 100 and drawn == sorted(drawn) != draw_texts(TEXTS, 100, seed=1)
    for number in range(240, 300):  # 200 + 2 x 40 = 280
        texts = [*TEXTS[:200], *[f"a further text {i}" for i in range(number - 200)]]
        drawn = draw_texts(texts, 200)
        assert len(drawn) == (199 if number == 280 else 200)
        assert len(drawn) + 2 * len(hold_out([texts[i] for i in drawn])) != number


def test_track_record_is_that_of_pairs_of_models():
    pairs = json.loads((ROOT / "results/comparison.json").read_text())["pairs"]
    pairs = [pair for pair in pairs if pair["models"] == 2]  # and not two poolings of one model
    groups = {
        "all": pairs,
        "clear": [p for p in pairs if p["clear"]["halves"]],
        "alike": [p for p in pairs if p["alike"]],
    }
    found = {name: (sum(pair["right"]["halves"] for pair in group), len(group)) for name, group in groups.items()}
    found["words"] = (sum(pair["right"]["neighbors as by words"] for pair in pairs), len(pairs))
    assert found == RECORD


def test_word_agreement_counts_common_neighbors():
    """Each text has words of its own and words of its topic, which 14 others share."""
    texts = [f"sun{i % 12} moon{i % 12} word{i}" for i in range(180)]
    source = np.random.default_rng(0)
    topics, random = (
        np.eye(12)[np.arange(180) % 12] + 0.01 * source.normal(size=(180, 12)),
        source.normal(size=(180, 5)),
    )
    assert word_agreement(texts, topics) > 0.6 and word_agreement(texts, random) < 0.1
    assert word_agreement(texts[:11], topics[:11]) is None and word_agreement(["the"] * 20, topics[:20]) is None


def test_shared_fraction_by_definition():
    source = np.random.default_rng(0)
    one, other = (np.stack([source.choice(30, 10, replace=False) for _ in range(7)]) for _ in range(2))
    expected = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(one, other)])
    assert shared_fraction(one, other) == pytest.approx(expected) and shared_fraction(one, one) == 1


def test_equal_vectors_share_their_ranks():
    """Zeros, as in a file that was not filled to its end, and a collapsed encoder must not look perfect."""
    source = np.random.default_rng(0)
    texts = source.normal(size=(9, 4))
    for broken in (np.zeros((9, 4)), np.ones((9, 4))):
        assert log_ranks(broken, texts * 0 + 1) == pytest.approx(np.log(5))
    assert log_ranks(np.zeros((9, 4)), texts) == pytest.approx(np.log(5))
    assert log_ranks(texts, texts) == pytest.approx(0)
