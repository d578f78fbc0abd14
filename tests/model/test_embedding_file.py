"""Files of embeddings: other files are kept, damage is noticed, and unfinished work is continued."""

import json
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest

from informin.errors import SaveError
from informin.model import embedding
from informin.model.checksums import settings_sha256
from informin.model.open import in_precision, load_model
from tests.conftest import make_sentences, raises_usage

TEXTS = make_sentences(5)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(embedding, "RECORDED_AT_ONCE", 2)


@pytest.fixture
def model(st_mean):
    return load_model(st_mean)


@pytest.fixture
def embedded(monkeypatch) -> list[str]:
    """The texts that were embedded."""
    seen, encode = [], embedding.encode

    def spy(model, texts, *how):
        vectors = encode(model, texts, *how)
        seen.extend(texts)
        return vectors

    monkeypatch.setattr(embedding, "encode", spy)
    return seen


def embed(model, folder: Path, texts: list[str] = TEXTS, **how) -> np.ndarray:
    return np.array(embedding.embed_file(model, texts, folder / "texts.npy", **how))


def begin(model, folder: Path, monkeypatch, chunks: int) -> Path:
    """Embed some chunks, fail, and return the folder of the unfinished file."""
    encode, calls = embedding.encode, []

    def fail(*args):
        if len(calls) == chunks:
            raise ZeroDivisionError
        calls.append(1)
        return encode(*args)

    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(embedding, "encode", fail)
        embed(model, folder)
    assert not (folder / "texts.npy").exists()
    return folder / ".texts.npy.embedding"


def test_file_and_record_appear_together_and_are_read_again(model, tmp_path, embedded):
    expected = model.encode(TEXTS)
    for _ in range(2):
        np.testing.assert_allclose(embed(model, tmp_path), expected, atol=1e-5)
    assert embedded == TEXTS, "a finished file is not embedded again"
    assert sorted(path.name for path in tmp_path.iterdir() if ".lock" not in path.name) == [
        "texts.npy",
        "texts.npy.json",
    ]


@pytest.mark.parametrize("change", ["texts", "model", "prompt", "side"])
def test_other_embeddings_are_an_error(model, tmp_path, change):
    embed(model, tmp_path)
    how = {"prompt": dict(prompt="red "), "side": dict(side="query")}.get(change, {})
    if change == "model":
        next(model.parameters()).data += 0.1
    with raises_usage():
        embed(model, tmp_path, TEXTS[::-1] if change == "texts" else TEXTS, **how)


def test_poolings_of_other_layers_are_other_embeddings(bert, tmp_path):
    how = dict(output=tmp_path / "texts.npy", device="cpu")
    embedding.embed(bert, TEXTS, pooler="first_last", **how)
    with raises_usage(found="other embeddings"):
        embedding.embed(bert, TEXTS, pooler="last2", **how)


@pytest.mark.parametrize("name", ["texts.npy", "texts.npy.json"])
def test_other_files_are_kept(model, tmp_path, name):
    (tmp_path / name).write_text('{"mine": 1}')
    with raises_usage():
        embed(model, tmp_path)
    assert (tmp_path / name).read_text() == '{"mine": 1}'


@pytest.mark.parametrize("size", [3, -3])
def test_damage_is_noticed(model, tmp_path, size):
    embed(model, tmp_path)
    content = (tmp_path / "texts.npy").read_bytes()
    (tmp_path / "texts.npy").write_bytes(content[:size])
    with raises_usage():
        embed(model, tmp_path)


@pytest.mark.parametrize("damage", [False, True])
def test_finished_chunks_are_kept_if_their_rows_are(model, tmp_path, monkeypatch, embedded, damage):
    folder = begin(model, tmp_path, monkeypatch, chunks=2)
    embedded.clear()
    if damage:
        np.lib.format.open_memmap(folder / "rows.npy", "r+")[0] = np.nan  # as after a power failure
    np.testing.assert_allclose(embed(model, tmp_path), model.encode(TEXTS), atol=1e-5)
    assert embedded == (TEXTS[:2] if damage else []) + TEXTS[4:] and not folder.exists()


def test_a_full_disk_is_an_error_and_the_same_call_resumes(model, tmp_path, monkeypatch, embedded):
    """A limit for the size of files takes the place of a full disk. Memory maps, which it does not stop, die of one."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    encode, size = embedding.encode, 128 + 4 * 2 * model.get_embedding_dimension()

    def fill_disk(*args):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        return encode(*args)

    with monkeypatch.context() as patch, pytest.raises(SaveError, match="could not be written"):
        patch.setattr(embedding, "encode", fill_disk)
        try:
            embed(model, tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    embedded.clear()
    np.testing.assert_allclose(embed(model, tmp_path), model.encode(TEXTS), atol=1e-5)
    assert embedded == TEXTS[2:]


def test_unfinished_embeddings_of_other_texts_are_replaced(model, tmp_path, monkeypatch):
    begin(model, tmp_path, monkeypatch, chunks=1)
    other = make_sentences(7, seed=3)
    np.testing.assert_allclose(embed(model, tmp_path, other), model.encode(other), atol=1e-5)


def test_unfinished_embeddings_in_another_precision_are_kept(model, tmp_path, monkeypatch):
    """As on a node whose processor has bf16, in the queue of a cluster. With `overwrite`, they are replaced."""
    folder = begin(model, tmp_path, monkeypatch, chunks=1)
    half = in_precision(model, "bf16")
    with raises_usage(found="fp32, not bf16", fix="precision"):
        embed(half, tmp_path)
    assert len(list(folder.iterdir())) == 3  # rows, description and a chunk
    np.testing.assert_allclose(embed(half, tmp_path, overwrite=True), half.encode(TEXTS), atol=5e-3)


OWN_CODE = """
import torch
from transformers import BertModel
from .step import STEP

class OwnBert(BertModel):
    def forward(self, input_ids=None, position_ids=None, **others):
        places = STEP * torch.arange(input_ids.shape[1]).expand_as(input_ids)
        return super().forward(input_ids=input_ids, position_ids=places, **others)
"""


def test_other_code_of_equal_weights_is_another_model(st_mean, tmp_path):
    """Also code that the model's own code imports. A file or results of the other code were taken as those of this."""
    folder = shutil.copytree(st_mean, tmp_path / "own")
    config = json.loads((folder / "config.json").read_text()) | {"auto_map": {"AutoModel": "own.OwnBert"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(OWN_CODE)

    def opened(step: int):
        (folder / "step.py").write_text(f"STEP = {step}")
        return load_model(folder, trust_remote_code=True, device="cpu")

    vectors = embed(opened(2), tmp_path)
    np.testing.assert_array_equal(embed(opened(2), tmp_path), vectors)
    assert settings_sha256(opened(2)) != settings_sha256(opened(1)) != settings_sha256(load_model(folder, device="cpu"))
    with raises_usage(found="other embeddings"):
        embed(opened(1), tmp_path)
    assert not np.allclose(embed(opened(1), tmp_path, overwrite=True), vectors, atol=1e-3)
