"""Drift compared with plain loops, closed forms and invariances, and its warnings."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import ortho_group

from informin.errors import UndefinedScoreError
from informin.evaluation.drift import (
    MEASURES,
    draw,
    drift_table,
    drift_warnings,
    mean_squared_distance,
    measure_drift,
    mutual_pairs,
    neighbor_examples,
    stsb_dev,
)
from informin.evaluation.encode import effective_rank, hubness, rotated_cosine, uniformity, unit
from informin.evaluation.neighbors import nearest
from informin.evaluation.pairs import GradedPairs
from informin.evaluation.senteval import load_stsb_dev
from informin.evaluation.table import render
from tests.conftest import raises_usage
from tests.support.senteval_data import small_counts, write_senteval

NAMES = [f"sentence {i}" for i in range(60)]


def encoder(x: np.ndarray):
    """Return an encode() for the sentences of `NAMES`."""
    return lambda sentences: x[[NAMES.index(sentence) for sentence in sentences]]


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(60, 5)) + 3 * np.eye(5)[0]


@pytest.fixture
def y(x) -> np.ndarray:
    return x + np.random.default_rng(1).normal(size=x.shape)


def cosines(x: np.ndarray) -> list[list[float]]:
    return [[a @ b / math.sqrt((a @ a) * (b @ b)) for b in x] for a in x]


def closest(x: np.ndarray, k: int) -> list[list[int]]:
    """Return the k nearest other rows of each row, by sorting."""
    return [sorted((j for j in range(len(x)) if j != i), key=lambda j: -c[j])[:k] for i, c in enumerate(cosines(x))]


def test_measures_of_neighbors_equal_plain_loops(x, y):
    measured = measure_drift(encoder(x), encoder(y), NAMES)
    old, new = closest(x, 10), closest(y, 10)
    assert [sorted(row) for row in nearest(unit(x), 10)[0].tolist()] == [sorted(row) for row in old]
    kept = [sum(j in theirs for j in ours) for ours, theirs in zip(old, new)]
    assert measured.kept.tolist() == kept and 0 < sum(kept) < 600
    assert measured.new["neighbors_kept"] == pytest.approx(100 * sum(kept) / 600)
    for neighbors, end in ((old, measured.old), (new, measured.new)):
        times = [sum(i in row for row in neighbors) for i in range(60)]
        sd = math.sqrt(sum((t - 10) ** 2 for t in times) / 60)
        assert end["hubness"] == pytest.approx(sum((t - 10) ** 3 for t in times) / 60 / sd**3)


def test_positive_pairs_are_mutual_neighbors_of_the_old_encoder(x, y):
    measured = measure_drift(encoder(x), encoder(y), NAMES)
    first = [row[0] for row in closest(x, 1)]
    pairs = [(i, j) for i, j in enumerate(first) if first[j] == i and i < j]
    assert mutual_pairs(nearest(unit(x), 3)[0]).tolist() == [list(pair) for pair in pairs]
    for z, end in ((x, measured.old), (y, measured.new)):
        distance = [[2 - 2 * c for c in row] for row in cosines(z)]
        near = np.mean([distance[i][j] for i, j in pairs])
        far = np.mean([distance[i][j] for i, j in itertools.combinations(range(60), 2)])
        assert end["alignment"] == pytest.approx(near)
        assert end["neighbor_distance"] == pytest.approx(100 * near / far)
        assert end["uniformity"] == pytest.approx(uniformity(z))


@pytest.mark.parametrize("zeros", [0, 1, 7])
def test_mean_distance_over_all_pairs_equals_a_loop(zeros):
    """Rows of zeros have no direction and stay zero."""
    z = np.random.default_rng(5).normal(size=(40, 3)) + 0.5
    z[:zeros] = 0
    units = [row / (math.sqrt(row @ row) or 1) for row in z]
    distances = [((a - b) ** 2).sum() for a, b in itertools.combinations(units, 2)]
    assert mean_squared_distance(z) == pytest.approx(np.mean(distances))


def test_best_rotation_equals_a_search_over_all_angles():
    x, y = np.random.default_rng(2).normal(size=(2, 40, 2))
    centered = [[row / math.hypot(*row) for row in z] for z in (x, y)]
    (a, b) = (np.array(rows) - np.mean(rows, axis=0) for rows in centered)
    best = (-math.inf, 0.0)
    for angle, mirror in itertools.product(np.linspace(0, 2 * math.pi, 20_001), (1, -1)):
        turn = np.array([[math.cos(angle), math.sin(angle)], [-mirror * math.sin(angle), mirror * math.cos(angle)]])
        turned = a @ turn
        each = (turned * b).sum(1) / np.linalg.norm(turned, axis=1) / np.linalg.norm(b, axis=1)
        best = max(best, ((turned * b).sum(), each.mean()))
    assert rotated_cosine(x, y).mean() == pytest.approx(best[1], abs=1e-3)


@pytest.mark.parametrize("wider", [0, 3])
def test_rotation_and_scaling_are_not_drift(x, wider):
    """Nor are additional dimensions without content."""
    turned = np.pad(x, ((0, 0), (0, wider))) @ ortho_group.rvs(5 + wider, random_state=0)
    turned *= np.random.default_rng(3).uniform(0.1, 9, (60, 1))
    for old, new in ((x, turned), (turned, x)):
        measured = measure_drift(encoder(old), encoder(new), NAMES)
        assert measured.new["neighbors_kept"] == 100 and measured.kept.tolist() == [10] * 60
        assert measured.cosine == pytest.approx(np.ones(60))
        assert measured.new == pytest.approx(measured.old | {"stsb_dev": None})
        assert measured.record()["warnings"] == []


def test_rotated_cosine_of_unrelated_embeddings_matches_docstring():
    a, b = np.random.default_rng(4).normal(size=(2, 2000, 100))
    assert rotated_cosine(a, b).mean() == pytest.approx(0.85 * math.sqrt(100 / 2000), abs=0.02)


def test_hubs():
    p, q = 0.1, 0.9
    assert hubness(np.array([[0]] * 10)) == pytest.approx((q - p) / math.sqrt(p * q))  # skewness of one in ten
    assert hubness(np.array([[1], [2], [0]])) == 0


def test_effective_rank():
    both = np.concatenate([np.eye(6), -np.eye(6)])
    assert effective_rank(both) == pytest.approx(6)
    assert effective_rank(both[[0, 6]] + 0) == pytest.approx(1)
    assert effective_rank(7 * both @ ortho_group.rvs(6, random_state=1)) == pytest.approx(6)
    assert effective_rank(np.ones((4, 3))) == pytest.approx(1)
    values = np.array([3.0, 1.0])  # of rows on a circle, with two spreads
    angles = np.arccos(values / np.linalg.norm(values))
    rows = np.array(
        [[math.cos(t), math.sin(t)] for t in (angles[0], -angles[0], angles[0] + math.pi, math.pi - angles[0])]
    )
    share = np.abs([math.cos(angles[0]), math.sin(angles[0])])
    share /= share.sum()
    assert effective_rank(rows) == pytest.approx(math.exp(-(share * np.log(share)).sum()))


def test_each_encoder_encodes_each_sentence_once(x, y):
    asked = []

    def old(sentences):
        asked.append(list(sentences))
        return encoder(x)(sentences)

    pairs = GradedPairs("STS-B dev", NAMES[:6], NAMES[50:56], np.arange(6.0))
    measured = measure_drift(old, encoder(y), NAMES[:40] + NAMES[:3], pairs)
    assert [sorted(sentences) for sentences in asked] == [sorted(NAMES[:40] + NAMES[50:56])]
    assert measured.sentences == NAMES[:40]
    for z, end in ((x, measured.old), (y, measured.new)):
        ranks = np.argsort(np.argsort([cosines(z)[i][50 + i] for i in range(6)]))
        assert end["stsb_dev"] == pytest.approx(100 * np.corrcoef(ranks, np.arange(6))[0, 1])
    constant = measure_drift(encoder(x), encoder(np.ones((60, 4))), NAMES, pairs)
    assert constant.new["stsb_dev"] is None and constant.new["neighbor_distance"] is None


def test_undefined_measures_are_none(x):
    with raises_usage(needed="30 or more"):
        measure_drift(encoder(x), encoder(x), NAMES[:29] * 2)
    broken = x.copy()
    broken[3] = np.nan
    with pytest.raises(UndefinedScoreError, match="the embeddings of 1 of 60 sentences are not finite"):
        measure_drift(encoder(x), encoder(broken), NAMES)


def test_sample_contains_distinct_random_sentences():
    lines = ["", " a  b\t", "a b", *NAMES, *NAMES, "  "]
    assert sorted(draw(lines, 100)) == sorted(["a b", *NAMES])
    few = draw(lines, 20)
    assert len(set(few)) == 20 and few == draw(lines, 20) != draw(lines, 20, seed=1)
    assert few != sorted(few, key=lines.index)


def test_stsb_dev_is_never_fetched(tmp_path, monkeypatch):
    assert stsb_dev(None) is None
    small_counts(monkeypatch, 0.02)
    folder = write_senteval(tmp_path, 0.02)
    expected = load_stsb_dev(folder).sha256
    assert stsb_dev(str(folder)).sha256 == expected
    monkeypatch.setenv("SENTEVAL_DATA", str(folder))
    assert stsb_dev(None).sha256 == expected
    with raises_usage("senteval_dir"):
        stsb_dev(str(tmp_path / "absent"))


def test_table(x, y):
    record = measure_drift(encoder(x), encoder(y), NAMES).record()
    assert record["sentences"] == 60 and record["old"].keys() == record["new"].keys() == MEASURES.keys()
    lines = render(drift_table({"after": record, "again": record}, "before"), "text").splitlines()
    assert lines[0] == "Drift on 60 sentences" and lines[1].split() == ["before", "after", "again"]
    kept = f"{record['new']['neighbors_kept']:.1f}"
    assert lines[2].split()[-3:] == ["100.0", kept, kept]
    assert lines[-1].endswith("not scored  not scored  not scored")


STILL = dict(neighbors_kept=100.0, rotated_cosine=1.0, alignment=0.75, neighbor_distance=38.5, uniformity=-3.79)
STILL |= dict(effective_rank=295.0, hubness=2.2, stsb_dev=86.7)


@pytest.mark.parametrize(
    "change, told",
    [
        (dict(neighbors_kept=60.0, neighbor_distance=44.2, hubness=3.1, stsb_dev=84.8, uniformity=-0.21), []),
        (dict(effective_rank=148.0, stsb_dev=99.0, hubness=-1.0, neighbor_distance=3.0, rotated_cosine=0.2), []),
        (dict(effective_rank=147.0), ["collapsed the embeddings: effective rank 147 (before: 295)"]),
        (dict(uniformity=-0.19), ["collapsed the embeddings: effective rank 295 (before: 295)"]),
        (dict(neighbor_distance=44.3), ["moved neighbors apart: 44.3 (before: 38.5)%"]),
        (dict(neighbor_distance=None), []),
        (dict(neighbors_kept=59.9), ["changed neighborhoods: sentences kept 59.9%"]),
        (dict(stsb_dev=84.6), ["reduced general ability: STS-B dev fell to 84.60 (before: 86.70)"]),
        (dict(stsb_dev=None), ["reduced general ability: STS-B dev has no score (before: 86.70)"]),
        (dict(hubness=3.3), ["created hubs: the skewness of neighbor counts rose to 3.30 (before: 2.20)"]),
        (dict(neighbors_kept=1.0, hubness=9.0), ["changed neighborhoods: sentences kept 1.0%", "created hubs: "]),
    ],
)
def test_warnings(change, told):
    found = drift_warnings(STILL, STILL | change)
    assert [warning[: len(start)] for warning, start in zip(found, told, strict=True)] == told


def test_adapters_may_move_neighbors_apart_and_get_advice_of_their_own():
    changed = STILL | dict(neighbor_distance=99.0, effective_rank=147.0, stsb_dev=84.6)
    found = drift_warnings(STILL, changed, trained=False)
    assert [warning.split(":")[0] for warning in found] == ["collapsed the embeddings", "reduced general ability"]
    assert not any("learning_rate" in warning for warning in found)


def test_no_warning_if_the_old_encoder_was_no_better():
    """Its embeddings were almost equal, and STS-B was not scored."""
    alike = STILL | dict(uniformity=-0.1, stsb_dev=None, neighbor_distance=None)
    assert drift_warnings(alike, alike | dict(uniformity=-0.15, neighbor_distance=40.0, stsb_dev=None)) == []


def test_examples_name_lost_and_gained_neighbors(x, y):
    examples = neighbor_examples(NAMES, encoder(x), encoder(y))
    old, new, before, after = closest(x, 10), closest(y, 10), cosines(x), cosines(y)
    kept = [len({*a} & {*b}) for a, b in zip(old, new)]
    assert len(examples) == len({one["sentence"] for one in examples}) == 20
    assert [one["kept"] for one in examples[:10]] == sorted(kept)[:10], "the most changed come first"
    for one in examples:
        row = NAMES.index(one["sentence"])
        assert one["kept"] == kept[row]
        for key, ours, theirs in (("lost", old, new), ("gained", new, old)):
            expected = [j for j in ours[row] if j not in theirs[row]][:5]
            assert [NAMES.index(other["sentence"]) for other in one[key]] == expected
            for j, other in zip(expected, one[key]):
                assert other["old"] == pytest.approx(before[row][j], abs=6e-4)
                assert other["new"] == pytest.approx(after[row][j], abs=6e-4)
