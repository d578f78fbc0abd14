"""Neighbors of examples, hubs and maps before and after a run."""

import numpy as np
import pytest

from informin.evaluation.geometry import nearest, unit
from informin.evaluation.snapshot import layouts, take_snapshot

TEXTS = [f"text {i}" for i in range(60)]
X = np.random.default_rng(0).normal(size=(60, 6))
Y = X + np.where(np.arange(60) < 5, 3.0, 0.05)[:, None] * np.random.default_rng(1).normal(size=(60, 6))


def encoder(x: np.ndarray):
    return lambda some: x[[TEXTS.index(text) for text in some]]


@pytest.fixture(scope="module")
def found():
    return take_snapshot(TEXTS, encoder(X), encoder(Y))


def test_examples_have_the_neighbors_of_their_embeddings(found):
    """Recomputed from all cosines with numpy."""
    assert found["sentences"] == 60 and len(found["examples"]) == 20
    old, new = (z @ z.T - 2 * np.eye(60) for z in (unit(X), unit(Y)))
    for example in found["examples"]:
        row = TEXTS.index(example["sentence"])
        before, after = (np.argsort(-cosines[row])[:10].tolist() for cosines in (old, new))
        lost = [TEXTS[i] for i in before if i not in after]
        assert [one["sentence"] for one in example["lost"]] == lost[:5]
        assert [one["sentence"] for one in example["gained"]] == [TEXTS[i] for i in after if i not in before][:5]
        assert example["kept"] == 10 - len(lost)
        for one in example["lost"] + example["gained"]:
            other = TEXTS.index(one["sentence"])
            assert (one["old"], one["new"]) == pytest.approx((old[row, other], new[row, other]), abs=6e-4)


def test_half_of_the_examples_changed_most(found):
    kept = [example["kept"] for example in found["examples"]]
    assert [example["most_changed"] for example in found["examples"]] == [True] * 10 + [False] * 10
    assert kept[:10] == sorted(kept[:10]) and max(kept[:10]) <= min(kept[10:])
    assert {f"text {i}" for i in range(5)} <= {example["sentence"] for example in found["examples"][:10]}


def test_hubs_are_counted(found):
    counts = np.bincount(nearest(unit(Y), 10)[0].ravel(), minlength=60)
    assert sum(found["hubs"]["new"]) == sum(found["hubs"]["old"]) == 60
    assert [number * times for times, number in enumerate(found["hubs"]["new"])] and max(counts) == (
        len(found["hubs"]["new"]) - 1
    )
    top = found["hubs"]["top"]
    assert [hub["new"] for hub in top] == sorted(counts, reverse=True)[:5]
    assert [counts[TEXTS.index(hub["sentence"])] for hub in top] == [hub["new"] for hub in top]


def test_map_starts_with_the_examples(found):
    drawn = found["map"]
    assert drawn["sentences"][:20] == [example["sentence"] for example in found["examples"]]
    assert sorted(drawn["sentences"]) == sorted(TEXTS)
    assert len(drawn["old"]) == len(drawn["new"]) == len(drawn["group"]) == 60


def test_maps_share_their_layout():
    """Embeddings that hardly change keep their place. Distances are compared with those of a shuffled map."""
    first, second = layouts(unit(X), unit(X + 0.01))
    moved = np.linalg.norm(first - second, axis=1).mean()
    assert moved < 0.3 * np.linalg.norm(first - first[::-1], axis=1).mean()


def test_equal_embeddings_have_a_map():
    """After a collapse, all distances are 0."""
    first, second = layouts(unit(X), np.ones((60, 6)) / 6**0.5)
    assert np.isfinite(first).all() and np.isfinite(second).all()
