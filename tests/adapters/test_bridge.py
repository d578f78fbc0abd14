"""Bridges between models: the map, and the decision without labels."""

from dataclasses import replace

import numpy as np
import pytest

from informin.adapters.bridge import AGAIN, ALLOWANCE, BRIDGE, FIT, MARGIN, STAY, Bridge, Expected, expect
from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import HalvesTest, log_ranks
from tests.adapters.test_linear import WIDTH, clustered, unit
from tests.conftest import raises_usage


def halved(noise: float, width: int = 8, rows: int = 400, held_out: int = 80, seed: int = 0) -> HalvesTest:
    """Embeddings of texts with a meaning that models share, and with noise."""
    meaning = np.random.default_rng(0).normal(size=(rows + held_out, 8))
    source = np.random.default_rng(seed + 1)
    axes = np.linalg.qr(source.normal(size=(width, width)))[0][:8]

    def embedded(part: np.ndarray) -> np.ndarray:
        return part @ axes + noise * source.normal(size=(len(part), width))

    return HalvesTest(embedded(meaning[:rows]), embedded(meaning[rows:]), embedded(meaning[rows:]))


def test_a_bridge_undoes_a_rotation_into_more_dimensions():
    new = clustered(400)
    rotation = np.linalg.qr(np.random.default_rng(3).normal(size=(16, WIDTH)))[0].T
    old = 3 * unit(new) @ rotation
    bridge = Bridge.fit(new, old)
    queries = clustered(9, seed=1)
    expected = bridge.index(unit(queries) @ rotation)
    found = bridge.transform(queries)
    assert found.shape == (9, 16)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1)
    assert (found * expected).sum(-1).min() > 0.99
    np.testing.assert_allclose(bridge.index(old), LinearAdapter().fit(old).transform(old))
    np.testing.assert_allclose(bridge.rotation @ bridge.rotation.T, np.eye(WIDTH), atol=1e-9)


def test_into_fewer_dimensions_and_rows_of_zeros():
    bridge = Bridge.fit(clustered(60), clustered(60, width=5))
    found = bridge.transform(np.vstack([clustered(3), np.zeros((1, WIDTH))]))
    assert found.shape == (4, 5) and np.isfinite(found).all()


def test_embeddings_of_other_texts_are_refused():
    with raises_usage(found="new has 400 rows and old has 399"):
        Bridge.fit(clustered(400), clustered(399))
    with raises_usage(found="new has 19 rows", needed="20 texts or more"):
        Bridge.fit(clustered(19), clustered(19))
    with raises_usage(found="NaN or infinity"):
        Bridge.fit(np.full((30, 4), np.nan), clustered(30))


def test_a_much_better_model_is_worth_embedding_again_and_a_worse_one_is_not():
    good, bad = halved(0.1), halved(3.0, width=12, seed=1)
    better, worse = expect(good, bad), expect(bad, good)
    assert better.best == AGAIN and better.texts == 80 and better.rank(AGAIN) < 0.2 * better.rank(STAY)
    assert worse.best in (STAY, FIT) and worse.best_with_old_index == worse.best
    assert worse.log_ranks[STAY] == pytest.approx(log_ranks(good.first, good.second).mean())


def test_a_bridge_is_as_good_as_the_new_model_if_the_index_is_as_good():
    """Queries of the new model are bad in the old index without the rotation."""
    one, other = halved(0.1), halved(0.1, seed=5)
    found = expect(other, one)
    assert found.rank(BRIDGE) < 1.5 and found.best in (STAY, FIT)
    assert np.exp(log_ranks(other.first, one.second).mean()) > 5


def test_an_adapter_of_held_out_texts_never_saw_them(monkeypatch):
    seen = []
    fit = Bridge.fit
    monkeypatch.setattr(Bridge, "fit", lambda new, old: seen.append((new, old)) or fit(new, old))
    new, old = halved(0.1), halved(0.2, seed=1)
    expect(new, old)
    assert seen[0][0] is new.fit_on and seen[0][1] is old.fit_on


@pytest.mark.parametrize(
    ("ranks", "of_queries", "best", "kept"),
    [
        ((2.0, 1.5, 1.9, 1.26), (2.0, 1.5, 1.0, 1.0), FIT, FIT),
        ((2.0, 1.5, 1.9, 1.24), (2.0, 1.5, 1.94, 1.0), AGAIN, BRIDGE),
        ((2.0, 1.5, 1.9, 1.24), (1.4, 1.5, 1.94, 1.0), AGAIN, FIT),
        ((1.5, 2.0, 1.0, 0.5), None, AGAIN, STAY),
    ],
)
def test_a_change_of_the_model_needs_a_margin(ranks, of_queries, best, kept):
    log_ranks, query_log_ranks = (part and dict(zip((STAY, FIT, BRIDGE, AGAIN), part)) for part in (ranks, of_queries))
    found = Expected(log_ranks, 100, query_log_ranks)
    assert (MARGIN, ALLOWANCE) == (0.25, 0.45) and (found.best, found.best_with_old_index) == (best, kept)


def test_short_queries_are_judged_against_whole_texts():
    new, old = halved(0.1), halved(0.2, seed=5)
    given = expect(*(replace(test, queries=test.first, whole=test.second) for test in (new, old)))
    assert given.query_log_ranks == given.log_ranks == expect(new, old).log_ranks
    assert expect(new, old).query_log_ranks is None


def test_too_few_texts_are_refused():
    with raises_usage(option="texts", found="has 49 texts", needed="50 or more, which 250 texts give"):
        expect(halved(0.1, held_out=49), halved(0.1, held_out=49))


def test_other_files_are_no_bridges(tmp_path):
    LinearAdapter().fit(clustered(60)).save(tmp_path / "adapter.safetensors")
    (tmp_path / "text.safetensors").write_text("{}")
    for name in ("adapter", "text", "missing"):
        with raises_usage(found="is not a bridge", needed="informin upgrade"):
            Bridge.load(tmp_path / f"{name}.safetensors")
