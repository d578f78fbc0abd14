"""The cached guide: embeddings computed once, nearest neighbors by blocks, neighborhood means."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from informin.guide import cache, neighbors, smoothing
from informin.guide.cache import load_guide
from tests.conftest import raises_usage

SENTENCES = [f"sentence {i}" for i in range(50)]


class Encoder(SimpleNamespace):
    """Random vectors by sentence, and how many were asked for."""

    name, poolers, dimensions = "tiny", ("cls",), 6
    device = torch.device("cpu")
    seen = 0
    checksum = "a"

    def sha256(self):
        return self.checksum

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


def test_lookup_returns_unit_vectors_in_order(guide, encoder):
    x = encoder(SENTENCES, str)["cls"]
    expected = torch.from_numpy(x / np.linalg.norm(x, axis=1, keepdims=True))
    rows = torch.tensor([3, 49, 0, 3])
    torch.testing.assert_close(guide.lookup(rows), expected[rows], atol=1e-3, rtol=0)
    assert guide.lookup(rows).dtype == torch.float32 and (len(guide), guide.dimensions) == (50, 6)


def test_embeddings_are_computed_once(guide, encoder, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        assert encoder.seen == 50
        again = load_guide(tmp_path / "guide", encoder, SENTENCES)
        assert encoder.seen == 50 and np.array_equal(again.embeddings, guide.embeddings)
    assert "with the guide" not in caplog.text
    written = {guide.path.name, guide.path.with_suffix(".json").name}
    assert {path.name for path in (tmp_path / "guide").iterdir()} == written, "nothing half-written"


def path_of(encoder, sentences, folder):
    return load_guide(folder, encoder, sentences).path


def test_other_encoder_or_sentences_get_another_file(guide, tmp_path):
    swapped = [SENTENCES[1], SENTENCES[0], *SENTENCES[2:]]
    assert path_of(Encoder(checksum="b"), SENTENCES, tmp_path / "guide") != guide.path
    assert path_of(Encoder(), swapped, tmp_path / "guide") != guide.path
    assert path_of(Encoder(), SENTENCES, tmp_path / "guide") == guide.path


def test_key_depends_on_sentence_boundaries(tmp_path):
    """No character works as a separator: sentences may contain any."""
    for one, other in (
        (["sentence 1", "sentence 2\0x"], ["sentence 1\0sentence 2", "x"]),
        (["sentence 1 \n", "x"], ["sentence 1 ", "\nx"]),
        (["sentence 1", ""], ["sentence 1"]),
    ):
        assert cache._key(Encoder(), one)[0] != cache._key(Encoder(), other)[0]


def test_copies_are_not_neighbors_and_count_once(guide, encoder, tmp_path):
    """Otherwise the neighbors of a text with k copies are its copies, and means over neighbors change nothing."""
    rows = [*range(50), 7, 7, 7, 12]
    repeated = load_guide(tmp_path / "repeated", encoder, [SENTENCES[row] for row in rows])
    assert repeated.first.tolist() == rows
    (expected, cosines), (indices, found) = guide.nearest(3), repeated.nearest(3)
    assert torch.equal(indices, expected[rows]) and torch.equal(found, cosines[rows])
    means, alone = repeated.neighborhood_means(3), guide.neighborhood_means(3)
    np.testing.assert_allclose(means.embeddings, alone.embeddings[rows], atol=2e-3)
    assert means.path.stem.endswith("-distinct") and not alone.path.stem.endswith("-distinct")


def test_pairs_of_copies_are_not_in_the_quantile(encoder, tmp_path):
    repeated = load_guide(tmp_path / "repeated", encoder, SENTENCES[:4] * 50)
    assert repeated.quantile(0.1) < 0.99, "a quarter of all pairs are equal"


DAMAGE = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "empty": lambda path: path.write_bytes(b""),
    "no array": lambda path: path.write_bytes(b"something else"),
    "NaN": lambda path: np.save(path, np.full((50, 6), np.nan, np.float16)),
    "other values": lambda path: np.save(path, np.load(path)[::-1].copy()),
    "fewer rows": lambda path: np.save(path, np.load(path)[:-1]),
    "more rows": lambda path: np.save(path, np.load(path).repeat(2, 0)),
    "narrower": lambda path: np.save(path, np.load(path)[:, :5].copy()),
    "flat": lambda path: np.save(path, np.load(path).ravel()),
    "float32": lambda path: np.save(path, np.load(path).astype(np.float32)),
    "integers": lambda path: np.save(path, np.load(path).view(np.int16)),
    "objects": lambda path: np.save(path, np.full((50, 6), None), allow_pickle=True),
    "one bit": lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
    "no header": lambda path: path.with_suffix(".json").unlink(),
    "an empty header": lambda path: path.with_suffix(".json").write_text(""),
    "a header of something else": lambda path: path.with_suffix(".json").write_text("[]"),
    "a header that is not text": lambda path: path.with_suffix(".json").write_bytes(b"\xff\xfe\x00"),
    "the header of another file": lambda path: path.with_suffix(".json").write_text(
        path.with_suffix(".json").read_text().replace("50", "49")
    ),
}


@pytest.mark.parametrize("derived", [False, True], ids=["embeddings", "means"])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_file_is_computed_again_with_one_warning(guide, encoder, damage, derived, caplog):
    def load():
        loaded = load_guide(guide.path.parent, encoder, SENTENCES)
        return loaded.neighborhood_means(3) if derived else loaded

    before = load()
    values = np.array(before.embeddings)
    del before.embeddings
    damage(before.path)
    caplog.clear()
    after = load()
    assert np.array_equal(after.embeddings, values)
    (line,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert line == f"{after.path} is damaged: it does not match {after.path.stem}.json. It is computed again."
    caplog.clear()
    assert np.array_equal(load().embeddings, values) and not caplog.records, "and is whole then"


def test_means_report_a_full_disk(guide, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "_new_array", full)
    with raises_usage("guide_cache", found="cannot be written: [Errno 28] No space left on device"):
        guide.neighborhood_means(3)


def test_nearest_neighbors_by_blocks_equal_full_sort(guide, cosines, monkeypatch):
    monkeypatch.setattr(neighbors, "PAIRS_AT_ONCE", 7 * 50)  # 7 rows at once, and a remainder
    np.fill_diagonal(cosines, -np.inf)
    indices, found = guide.nearest(4)
    assert np.array_equal(indices, cosines.argsort(1)[:, :-5:-1])
    np.testing.assert_allclose(found, -np.sort(-cosines, axis=1)[:, :4], atol=2e-3)


class Gpu:
    """Stands in for a GPU; the CPU does its work."""

    type = "cuda"


def test_nearest_neighbors_on_gpu_use_float32(guide, monkeypatch):
    """float16 products have 3 digits: the order of closer neighbors would be left to chance."""
    close = np.random.default_rng(0).normal(size=(50, 6)) * 0.02 + 1
    guide.embeddings = (close / np.linalg.norm(close, axis=1, keepdims=True)).astype(np.float16)
    exact = guide.embeddings.astype(np.float64) @ guide.embeddings.astype(np.float64).T
    np.fill_diagonal(exact, -np.inf)
    to = torch.Tensor.to
    here = torch.device("cpu")
    monkeypatch.setattr(
        torch.Tensor, "to", lambda x, *given: to(x, *(here if isinstance(g, Gpu) else g for g in given))
    )
    guide.device = Gpu()
    indices, cosines = guide.nearest(4)
    assert cosines.dtype == torch.float32
    np.testing.assert_allclose(np.take_along_axis(exact, indices.numpy(), 1), -np.sort(-exact, 1)[:, :4], atol=2e-7)
    np.testing.assert_allclose(cosines, -np.sort(-exact, 1)[:, :4], atol=2e-7)


def test_more_neighbors_than_sentences_are_refused(guide):
    assert guide.nearest(49)[0].shape == (50, 49)
    with raises_usage(found="50 neighbors for each of 50 different sentences", needed="at most 49"):
        guide.nearest(50)


def test_quantile_matches_all_pairs(guide, cosines):
    pairs = cosines[~np.eye(50, dtype=bool)]
    for fraction in (0.05, 0.5):
        assert guide.quantile(fraction) == pytest.approx(np.quantile(pairs, 1 - fraction), abs=0.02)


def test_neighborhood_means_match_a_loop(guide, encoder, cosines, monkeypatch):
    monkeypatch.setattr(smoothing, "CHUNK", 8)
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
    means = guide.neighborhood_means(3)
    np.testing.assert_allclose(means.embeddings, expected, atol=3e-3)
    monkeypatch.setattr(type(guide), "nearest", None)  # cached means need no neighbors
    assert np.array_equal(guide.neighborhood_means(3).embeddings, means.embeddings)
    with pytest.raises(TypeError):
        guide.neighborhood_means(2)
    monkeypatch.setattr(smoothing, "SELF_WEIGHT", 0.9)
    with pytest.raises(TypeError):
        guide.neighborhood_means(3)


def test_embeddings_that_are_not_finite_are_refused(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(Encoder, "__call__", lambda *_: {"cls": np.full((50, 6), np.nan, np.float32)})
    with raises_usage("guide_model", found="tiny gives embeddings that are not finite"):
        load_guide(tmp_path / "guide", encoder, SENTENCES)
    assert not list((tmp_path / "guide").iterdir())


def test_folder_that_cannot_be_written_is_refused(encoder, tmp_path):
    (tmp_path / "file").write_text("")
    with raises_usage("guide_cache", found="cannot be written: ", fix="write access"):
        load_guide(tmp_path / "file" / "guide", encoder, SENTENCES)
