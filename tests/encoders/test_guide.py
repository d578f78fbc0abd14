"""A guide's embeddings: computed once, kept, and their neighbors by blocks."""

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
    written = {guide.path.name, guide.path.with_suffix(".json").name}
    assert {path.name for path in (tmp_path / "guide").iterdir()} == written, "nothing half-written"


def path_of(encoder, sentences, folder):
    return load_guide(folder, encoder, sentences).path


def test_another_encoder_or_other_sentences_make_another_file(guide, tmp_path):
    swapped = [SENTENCES[1], SENTENCES[0], *SENTENCES[2:]]
    assert path_of(Encoder(checksum="b"), SENTENCES, tmp_path / "guide") != guide.path
    assert path_of(Encoder(), swapped, tmp_path / "guide") != guide.path
    assert path_of(Encoder(), SENTENCES, tmp_path / "guide") == guide.path


def test_no_character_of_a_sentence_passes_for_its_end(tmp_path):
    """Two sentences whose end and start are joined with a separator are not the same two cut elsewhere."""
    for one, other in (
        (["sentence 1", "sentence 2\0x"], ["sentence 1\0sentence 2", "x"]),
        (["sentence 1 \n", "x"], ["sentence 1 ", "\nx"]),
        (["sentence 1", ""], ["sentence 1"]),
    ):
        assert module._key(Encoder(), one) != module._key(Encoder(), other)


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
def test_a_damaged_file_is_computed_again_with_one_line(guide, encoder, damage, derived, caplog):
    def load():
        loaded = load_guide(guide.path.parent, encoder, SENTENCES)
        return loaded.neighborhoods(3) if derived else loaded

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


def test_means_that_cannot_be_written(guide, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_new_file", full)
    with pytest.raises(UsageError, match=r"cannot be written to .*No space left on device.*Give another `guide_cache`"):
        guide.neighborhoods(3)


def test_neighbors_by_blocks(guide, cosines, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 7 * 50)  # 7 rows at a time, and a rest
    np.fill_diagonal(cosines, -np.inf)
    places, found = guide.nearest(4)
    assert np.array_equal(places, cosines.argsort(1)[:, :-5:-1])
    np.testing.assert_allclose(found, -np.sort(-cosines, axis=1)[:, :4], atol=2e-3)


class Gpu:
    """Stands for a GPU; its work is done here."""

    type = "cuda"


def test_neighbors_on_a_gpu_are_as_exact_as_here(guide, monkeypatch):
    """Products of float16 would be rounded to 3 digits, and what is nearer by less would be left to chance."""
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
    places, cosines = guide.nearest(4)
    assert cosines.dtype == torch.float32
    np.testing.assert_allclose(np.take_along_axis(exact, places.numpy(), 1), -np.sort(-exact, 1)[:, :4], atol=2e-7)
    np.testing.assert_allclose(cosines, -np.sort(-exact, 1)[:, :4], atol=2e-7)


def test_more_neighbors_than_sentences(guide):
    assert guide.nearest(49)[0].shape == (50, 49)
    with pytest.raises(UsageError, match="50 neighbors of each of 50 sentences: needed more"):
        guide.nearest(50)


def test_quantile_of_random_pairs(guide, cosines):
    pairs = cosines[~np.eye(50, dtype=bool)]
    for share in (0.05, 0.5):
        assert guide.quantile(share) == pytest.approx(np.quantile(pairs, 1 - share), abs=0.02)


def test_neighborhoods_are_weighted_means(guide, encoder, cosines, monkeypatch):
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
    means = guide.neighborhoods(3)
    np.testing.assert_allclose(means.embeddings, expected, atol=3e-3)
    monkeypatch.setattr(type(guide), "nearest", None)  # the second time they are read
    assert np.array_equal(guide.neighborhoods(3).embeddings, means.embeddings)
    with pytest.raises(TypeError):
        guide.neighborhoods(2)
    monkeypatch.setattr(module, "OWN", 0.9)
    with pytest.raises(TypeError):
        guide.neighborhoods(3)


def test_embeddings_that_are_not_finite(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(Encoder, "__call__", lambda *_: {"cls": np.full((50, 6), np.nan, np.float32)})
    with pytest.raises(UsageError, match="`guide_model` tiny: its embeddings are not finite"):
        load_guide(tmp_path / "guide", encoder, SENTENCES)
    assert not list((tmp_path / "guide").iterdir())


def test_a_folder_that_cannot_be_written(encoder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot be written to .*Give another `guide_cache`"):
        load_guide(tmp_path / "file" / "guide", encoder, SENTENCES)
