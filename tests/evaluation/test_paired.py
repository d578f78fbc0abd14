"""Scores before and after with intervals."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from informin.evaluation.collections import Collection
from informin.evaluation.labels import LabeledSentences, score_labels
from informin.evaluation.paired import paired_scores
from informin.evaluation.pairs import GradedPairs, cosine, score_pairs

TEXTS = [f"text {i}" for i in range(60)]
LABELS = [str(i % 3) for i in range(60)]
CENTERS = np.eye(3)[np.arange(60) % 3]
NOISE = np.random.default_rng(0).normal(size=(60, 3))
WORSE, BETTER = CENTERS + NOISE, CENTERS + 0.3 * NOISE


def encoder(x: np.ndarray):
    return lambda some: x[[TEXTS.index(text) for text in some]]


PAIRS = GradedPairs("pairs", TEXTS[:30], TEXTS[30:], np.array([i % 3 == 0 for i in range(30)], float) + CENTERS[:30, 0])
LABELED = LabeledSentences("labels", TEXTS, LABELS)
QUERIES = Collection.of_pairs("queries", TEXTS[:30], TEXTS[30:])


def test_scores_are_those_of_each_kind_of_data():
    found = paired_scores([PAIRS, LABELED, QUERIES], encoder(WORSE), encoder(BETTER))
    assert [(one["kind"], one["measure"], one["n"]) for one in found] == [
        ("pairs", "spearman", 30),
        ("labels", "nearest_neighbor", 60),
        ("retrieval", "ndcg_10", 30),
    ]
    scores = (score_pairs, PAIRS), (score_labels, LABELED), (lambda encode, data: data.score(encode), QUERIES)
    for entry, (score, data) in zip(found, scores):
        before, after = (score(encoder(x), data)[entry["measure"]] for x in (WORSE, BETTER))
        assert (entry["old"][0], entry["new"][0]) == pytest.approx((before, after))
        assert entry["difference"][0] == pytest.approx(after - before)
        for value, low, high in (entry["old"], entry["new"], entry["difference"]):
            assert low <= value <= high and low < high


def test_interval_is_a_paired_bootstrap():
    """Recomputed in a loop over samples of pairs, with scipy's Spearman."""
    (found,) = paired_scores([PAIRS], encoder(WORSE), encoder(BETTER))
    generator, gains = np.random.default_rng(1), []
    cosines = [cosine(x[:30], x[30:]) for x in (WORSE, BETTER)]
    for _ in range(1000):
        rows = generator.integers(30, size=30)
        one, other = (100 * spearmanr(x[rows], PAIRS.scores[rows]).statistic for x in cosines)
        gains.append(other - one)
    assert found["difference"][1:] == pytest.approx(np.percentile(gains, [2.5, 97.5]), abs=6)


def test_a_clear_change_excludes_zero_and_none_has_zero():
    (clear,) = paired_scores([LABELED], encoder(WORSE), encoder(BETTER))
    assert clear["difference"][1] > 0
    (same,) = paired_scores([LABELED], encoder(BETTER), encoder(BETTER))
    assert same["difference"] == [0, 0, 0]


def test_undefined_scores_are_left_out():
    constant = np.ones((60, 3))
    assert paired_scores([PAIRS], encoder(WORSE), encoder(constant)) == []
    none = Collection.of_pairs("none", TEXTS[:2], TEXTS[2:4], [], [0, 0])
    assert paired_scores([none], encoder(WORSE), encoder(WORSE)) == []
