"""The cached guide: embeddings computed once, nearest neighbors by blocks, neighborhood means."""

import logging
import os
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from informin.errors import SaveError
from informin.model.open import load_model
from informin.training import guide as cache
from informin.training import guide as neighbors
from informin.training.guide import load_guide
from tests.conftest import make_sentences, raises_usage, save_sentence_transformer

SENTENCES = make_sentences(50)


@pytest.fixture(scope="module")
def model(bert, tmp_path_factory):
    return load_model(save_sentence_transformer(tmp_path_factory.mktemp("guide") / "tiny", bert), device="cpu")


@pytest.fixture
def encoded(monkeypatch) -> list[str]:
    """The sentences that are encoded."""
    seen, encode = [], cache.encode
    monkeypatch.setattr(cache, "encode", lambda model, texts: seen.extend(texts) or encode(model, texts))
    return seen


@pytest.fixture
def guide(model, tmp_path):
    return load_guide(tmp_path / "guide", model, SENTENCES)


@pytest.fixture
def unit_vectors(model):
    return model.encode(SENTENCES, normalize_embeddings=True).astype(np.float64)


@pytest.fixture
def cosines(unit_vectors):
    return unit_vectors @ unit_vectors.T


def test_lookup_returns_unit_vectors_in_order(guide, unit_vectors):
    rows = np.array([3, 49, 0, 3])
    found = guide.lookup(rows, torch.device("cpu"))
    torch.testing.assert_close(found, torch.from_numpy(unit_vectors).float()[rows], atol=1e-3, rtol=0)
    assert found.dtype == torch.float32 and len(guide) == 50


def test_embeddings_are_computed_once(encoded, model, tmp_path):
    guide = load_guide(tmp_path, model, SENTENCES)
    assert encoded == SENTENCES
    assert np.array_equal(load_guide(tmp_path, model, SENTENCES).embeddings, guide.embeddings)
    assert len(encoded) == 50
    written = {guide.path.name, guide.path.with_suffix(".json").name}
    assert {path.name for path in tmp_path.iterdir()} == written, "nothing half-written"


def test_an_array_never_appears_without_its_header(model, tmp_path, monkeypatch, caplog):
    """A process that arrives meanwhile would take it for damaged."""
    replace = os.replace

    def seen(source, target):
        replace(source, target)
        if str(target).endswith(".npy"):
            assert Path(target).with_suffix(".json").exists()

    monkeypatch.setattr(os, "replace", seen)
    load_guide(tmp_path, model, SENTENCES).neighborhood_means(3)
    assert len(list(tmp_path.glob("*.npy"))) == 2
    assert "damaged" not in caplog.text  # a busy machine may have other records


def test_another_model_or_other_sentences_get_another_file(guide, bert, tmp_path):
    folder = guide.path.parent
    again, other = (save_sentence_transformer(tmp_path / x, bert, pooling=x) for x in ("mean", "cls"))
    assert load_guide(folder, load_model(again, device="cpu"), SENTENCES).path == guide.path
    assert load_guide(folder, load_model(other, device="cpu"), SENTENCES).path != guide.path
    swapped = [SENTENCES[1], SENTENCES[0], *SENTENCES[2:]]
    assert load_guide(folder, load_model(again, device="cpu"), swapped).path != guide.path


def test_the_file_depends_on_sentence_boundaries(model, tmp_path):
    """No character works as a separator: sentences may contain any."""
    for one, other in ((["a \n", "dog"], ["a ", "\ndog"]), (["a dog", ""], ["a dog"])):
        assert load_guide(tmp_path, model, one).path != load_guide(tmp_path, model, other).path


def test_copies_are_not_neighbors_and_count_once(guide, model, tmp_path):
    """Otherwise the neighbors of a text with k copies are its copies, and means over neighbors change nothing."""
    rows = [*range(50), 7, 7, 7, 12]
    repeated = load_guide(tmp_path / "repeated", model, [SENTENCES[row] for row in rows])
    assert repeated.first.tolist() == rows
    (expected, cosines), (indices, found) = guide.nearest(3), repeated.nearest(3)
    assert (indices == expected[rows]).float().mean() > 0.95  # float16: near ties may change places
    torch.testing.assert_close(found, cosines[rows], atol=2e-3, rtol=0)
    means, alone = repeated.neighborhood_means(3), guide.neighborhood_means(3)
    np.testing.assert_allclose(means.embeddings, alone.embeddings[rows], atol=2e-3)


def test_pairs_of_copies_are_not_in_the_quantile(model, cosines, tmp_path):
    repeated = load_guide(tmp_path / "repeated", model, SENTENCES[:4] * 50)
    most = max(cosines[i, j] for i in range(4) for j in range(i))
    assert repeated.quantile(0.01) <= most + 2e-3, "a quarter of all pairs are equal"


DAMAGE = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "empty": lambda path: path.write_bytes(b""),
    "other values": lambda path: np.save(path, np.load(path)[::-1].copy()),
    "fewer rows": lambda path: np.save(path, np.load(path)[:-1]),
    "one bit": lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
    "no header": lambda path: path.with_suffix(".json").unlink(),
    "a header that is not text": lambda path: path.with_suffix(".json").write_bytes(b"\xff\xfe\x00"),
}


@pytest.mark.parametrize("derived", [False, True], ids=["embeddings", "means"])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_file_is_computed_again_with_one_warning(guide, model, damage, derived, caplog):
    def load():
        loaded = load_guide(guide.path.parent, model, SENTENCES)
        return loaded.neighborhood_means(3) if derived else loaded

    before = load()
    values = np.array(before.embeddings)
    del before.embeddings
    damage(before.path)
    caplog.clear()
    after = load()
    assert np.array_equal(after.embeddings, values)
    assert [record.levelno for record in caplog.records].count(logging.WARNING) == 1
    caplog.clear()
    assert np.array_equal(load().embeddings, values) and not caplog.records, "and is whole then"


def test_nothing_is_left_of_a_failed_write(model, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "encode", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        load_guide(tmp_path, model, SENTENCES)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error_that_names_the_file(model, tmp_path, monkeypatch):
    """A limit for the size of files takes the place of a full disk. Memory maps, which it does not stop, die of one."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_disk(*args):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
        return encode(*args)

    encode = cache.encode
    with monkeypatch.context() as patch, pytest.raises(SaveError, match="npy could not be written"):
        patch.setattr(cache, "encode", fill_disk)
        try:
            load_guide(tmp_path, model, SENTENCES)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
    assert len(load_guide(tmp_path, model, SENTENCES)) == len(SENTENCES)


def test_nearest_neighbors_by_blocks_equal_full_sort(guide, monkeypatch):
    monkeypatch.setattr(neighbors, "ROWS_AT_ONCE", 7)  # and a remainder
    x = guide.embeddings.astype(np.float64)
    cosines = x @ x.T
    np.fill_diagonal(cosines, -np.inf)
    indices, found = guide.nearest(4)
    np.testing.assert_allclose(found, -np.sort(-cosines, axis=1)[:, :4], atol=2e-6)
    np.testing.assert_allclose(np.take_along_axis(cosines, indices.numpy(), 1), found, atol=2e-6)


def test_more_neighbors_than_sentences_are_rejected(guide):
    assert guide.nearest(49)[0].shape == (50, 49)
    with raises_usage(needed="at most 49"):
        guide.nearest(50)


def test_quantile_matches_all_pairs(guide, cosines):
    pairs = cosines[~np.eye(50, dtype=bool)]
    for fraction in (0.05, 0.5):
        assert guide.quantile(fraction) == pytest.approx(np.quantile(pairs, 1 - fraction), abs=0.02)


def test_neighborhood_means_match_a_loop(guide, monkeypatch):
    monkeypatch.setattr(neighbors, "AVERAGED_AT_ONCE", 8)
    x = guide.embeddings.astype(np.float64)
    cosines = x @ x.T
    np.fill_diagonal(cosines, -np.inf)
    expected = x
    for _ in range(2):
        sums = []
        for i in range(50):
            nearest = cosines[i].argsort()[:-4:-1]
            weights = np.maximum(cosines[i, nearest], 0) ** 3
            sums.append(1 / 2 * expected[i] + 1 / 2 * (weights / weights.sum()) @ np.array(expected)[nearest])
        expected = [mean / np.linalg.norm(mean) for mean in sums]
    means = guide.neighborhood_means(3)
    np.testing.assert_allclose(means.embeddings, expected, atol=3e-3)
    monkeypatch.setattr(type(guide), "nearest", None)  # cached means need no neighbors
    assert np.array_equal(guide.neighborhood_means(3).embeddings, means.embeddings)
    with pytest.raises(TypeError):
        guide.neighborhood_means(2)
    monkeypatch.setattr(neighbors, "SELF_WEIGHT", 0.9)
    with pytest.raises(TypeError):
        guide.neighborhood_means(3)
