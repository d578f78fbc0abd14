"""A guide's embeddings: computed once, kept, and their neighbours by blocks."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from informin.encoders import guide as module
from informin.encoders.guide import load_guide
from informin.errors import UsageError

SENTENCES = [f"sentence {i}" for i in range(50)]


class Encoder(SimpleNamespace):
    """Random vectors by sentence, and how many were asked for."""

    name, poolers, prompt, length, bf16, dimensions = "tiny", ("cls",), "", 32, False, 6
    device = torch.device("cpu")
    seen = 0
    weights = "a"

    def weights_sha256(self):
        return self.weights

    def __call__(self, sentences, progress=None):
        self.seen += len(sentences)
        vectors = [np.random.default_rng(int(s.split()[1])).normal(size=6) for s in sentences]
        progress(len(sentences))
        return {"cls": 3 * np.array(vectors, np.float32)}


@pytest.fixture
def encoder():
    return Encoder()


@pytest.fixture
def guide(encoder, tmp_path):
    return load_guide(tmp_path / "guide", encoder, SENTENCES)


@pytest.fixture
def cosines(encoder):
    x = encoder(SENTENCES, str)["cls"]
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return x @ x.T


def test_unit_vectors_in_order(guide, encoder):
    x = encoder(SENTENCES, str)["cls"]
    expected = torch.from_numpy(x / np.linalg.norm(x, axis=1, keepdims=True))
    rows = torch.tensor([3, 49, 0, 3])
    torch.testing.assert_close(guide.of(rows), expected[rows], atol=1e-3, rtol=0)
    assert guide.of(rows).dtype == torch.float32 and (len(guide), guide.dimensions) == (50, 6)


def test_computed_once_and_kept(guide, encoder, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        assert encoder.seen == 50
        again = load_guide(tmp_path / "guide", encoder, SENTENCES)
        assert encoder.seen == 50 and np.array_equal(again.embeddings, guide.embeddings)
    assert "as guide" not in caplog.text
    assert [path.name for path in (tmp_path / "guide").iterdir()] == [guide.path.name], "nothing half-written"


@pytest.mark.parametrize(
    "other",
    [dict(weights="b"), dict(poolers=("mean",)), dict(prompt="query: "), dict(length=16), dict(bf16=True), {}],
    ids=lambda other: next(iter(other), "sentences"),
)
def test_what_changes_an_embedding_makes_it_another_file(guide, tmp_path, other):
    sentences = SENTENCES if other else [*SENTENCES[1:], "sentence 0"]
    encoder = Encoder(**other)
    encoder_call = type(encoder).__call__
    type(encoder).__call__ = lambda self, s, p=None: {self.poolers[0]: encoder_call(self, s, p)["cls"]}
    try:
        assert load_guide(tmp_path / "guide", encoder, sentences).path != guide.path
    finally:
        type(encoder).__call__ = encoder_call


def test_neighbours_by_blocks(guide, cosines, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 7 * 50)  # 7 rows at a time, and a rest
    np.fill_diagonal(cosines, -np.inf)
    places, found = guide.nearest(4)
    assert np.array_equal(places, cosines.argsort(1)[:, :-5:-1])
    np.testing.assert_allclose(found, -np.sort(-cosines, axis=1)[:, :4], atol=2e-3)


def test_more_neighbours_than_sentences(guide):
    assert guide.nearest(49)[0].shape == (50, 49)
    with pytest.raises(UsageError, match="50 neighbours of each of 50 sentences: needed more"):
        guide.nearest(50)


def test_quantile_of_random_pairs(guide, cosines):
    pairs = cosines[~np.eye(50, dtype=bool)]
    for share in (0.05, 0.5):
        assert guide.quantile(share) == pytest.approx(np.quantile(pairs, 1 - share), abs=0.02)


def test_neighbourhoods_are_weighted_means(guide, encoder, cosines, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 8)
    x = encoder(SENTENCES, str)["cls"]
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    np.fill_diagonal(cosines, -np.inf)
    expected = x
    for _ in range(2):
        sums = []
        for i in range(50):
            nearest = cosines[i].argsort()[:-4:-1]
            weights = np.maximum(cosines[i, nearest], 0) ** 3
            sums.append(1 / 2 * expected[i] + 1 / 2 * (weights / weights.sum()) @ np.array(expected)[nearest])
        expected = [mean / np.linalg.norm(mean) for mean in sums]
    means = guide.neighbourhoods(3)
    np.testing.assert_allclose(means.embeddings, expected, atol=3e-3)
    monkeypatch.setattr(type(guide), "nearest", None)  # the second time they are read
    assert np.array_equal(guide.neighbourhoods(3).embeddings, means.embeddings)
    with pytest.raises(TypeError):
        guide.neighbourhoods(2)
    monkeypatch.setattr(module, "OWN", 0.9)
    with pytest.raises(TypeError):
        guide.neighbourhoods(3)


def test_embeddings_that_are_not_finite(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(Encoder, "__call__", lambda *_: {"cls": np.full((50, 6), np.nan, np.float32)})
    with pytest.raises(UsageError, match="`guide_model` tiny: its embeddings are not finite"):
        load_guide(tmp_path / "guide", encoder, SENTENCES)
    assert not list((tmp_path / "guide").iterdir())


def test_a_folder_that_cannot_be_written(encoder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot be written to .*Give another `guide_cache`"):
        load_guide(tmp_path / "file" / "guide", encoder, SENTENCES)
