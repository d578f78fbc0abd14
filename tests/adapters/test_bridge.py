"""Bridges between models: the map, and the decision without labels."""

import numpy as np
import pytest

from informin.adapters.bridge import AGAIN, BRIDGE, FIT, MARGIN, STAY, Bridge, Expected, expect
from informin.adapters.linear import LinearAdapter
from tests.adapters.test_linear import WIDTH, clustered, unit
from tests.conftest import raises_usage

TOPICS = (
    "cats dogs birds pets",
    "sums roots primes numbers",
    "goals teams matches scores",
    "boats sails harbors winds",
)


def topical(rows: int = 400, width: int = 8, noise: float = 0.1, seed: int = 0) -> tuple[list[str], np.ndarray]:
    """Texts on four topics, and embeddings in which the topic is a direction."""
    source = np.random.default_rng(seed)
    topics = source.integers(4, size=rows)
    texts = [f"{' '.join(source.permutation(TOPICS[topic].split())[:3])} number{i}" for i, topic in enumerate(topics)]
    return texts, np.eye(4, width)[topics] + 1 + noise * source.normal(size=(rows, width))


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
    texts, good = topical()
    bad = np.random.default_rng(1).normal(size=(400, 6))
    better, worse = expect(texts, good, bad), expect(texts, bad, good)
    assert better.best == AGAIN and better.texts == 80
    assert worse.best in (STAY, FIT) and worse.best_with_old_index == worse.best
    assert better.agreement[AGAIN] > 2 * better.agreement[STAY]


def test_an_adapter_of_held_out_texts_never_saw_them(monkeypatch):
    seen = []
    fit = Bridge.fit
    monkeypatch.setattr(Bridge, "fit", lambda new, old: seen.append(len(new)) or fit(new, old))
    texts, good = topical()
    expect(texts, good, good)
    assert seen == [320]


@pytest.mark.parametrize(
    ("agreement", "best", "kept"),
    [
        ((0.20, 0.30, 0.30, 0.36), FIT, FIT),
        ((0.20, 0.30, 0.38, 0.38), AGAIN, BRIDGE),
        ((0.20, 0.10, 0.26, 0.24), BRIDGE, BRIDGE),
        ((0.20, 0.10, 0.20, 0.50), AGAIN, STAY),
    ],
)
def test_a_change_of_the_model_needs_a_margin(agreement, best, kept):
    found = Expected(dict(zip((STAY, FIT, BRIDGE, AGAIN), agreement)), 100)
    assert MARGIN == 1.25 and (found.best, found.best_with_old_index) == (best, kept)


def test_too_few_texts_and_texts_without_words_are_refused():
    with raises_usage(option="texts", found="has 99 texts", needed="100 or more"):
        expect(["a"] * 99, clustered(99), clustered(99))
    with raises_usage(option="texts", found="has no words"):
        expect(["the"] * 100, clustered(100), clustered(100))


def test_other_files_are_no_bridges(tmp_path):
    LinearAdapter().fit(clustered(60)).save(tmp_path / "adapter.safetensors")
    (tmp_path / "text.safetensors").write_text("{}")
    for name in ("adapter", "text", "missing"):
        with raises_usage(found="is not a bridge", needed="informin upgrade"):
            Bridge.load(tmp_path / f"{name}.safetensors")
