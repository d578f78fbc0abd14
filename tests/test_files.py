"""Atomic JSON files and checksums. tests/training/test_checkpoints.py tests manifests."""

import hashlib
import json
import os

import pytest

from informin.evaluation.results import load_results
from informin.files import damage, last_name, read_json, sha256, write_json
from informin.models.checkpoint import Checkpoint
from tests.conftest import raises_usage

NAN = float("nan")


def test_json_is_indented_and_keeps_unicode(tmp_path):
    """Unicode is not escaped, and the file ends with a newline."""
    values = {"b": [1, 2.5, None], "a": "é 日本"}
    for indent in (1, 2):
        write_json(tmp_path / "x.json", values, indent=indent)
        text = (tmp_path / "x.json").read_text(encoding="utf-8")
        assert text == json.dumps(values, indent=indent, ensure_ascii=False) + "\n" and "日本" in text
    assert os.listdir(tmp_path) == ["x.json"]


def test_pipes_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "x.json")
    for read in (read_json, load_results):
        with raises_usage(found="x.json is not a regular file"):
            read(tmp_path / "x.json")
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / "config.json")
    with raises_usage(option="model_name", found="the folder has no config.json"):
        Checkpoint(tmp_path / "run").require_config()
    os.mkfifo(tmp_path / "run" / "manifest.json")
    assert "no readable manifest.json" in damage(tmp_path / "run")


@pytest.mark.parametrize("value", [NAN, float("inf")])
def test_nan_and_infinity_in_json(tmp_path, value):
    """A refused write keeps the earlier file. With `allow_nan`, they are written as Python writes them."""
    write_json(tmp_path / "x.json", [1])
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", [value])
    assert (tmp_path / "x.json").read_text() == "[\n 1\n]\n" and os.listdir(tmp_path) == ["x.json"]
    write_json(tmp_path / "x.json", [value], allow_nan=True)
    assert str(json.loads((tmp_path / "x.json").read_text())) == str([value])


def test_json_is_written_atomically(tmp_path, monkeypatch):
    """Errors keep the old file and leave no temporary files."""
    path = tmp_path / "x.json"
    write_json(path, "old")

    def full(source, target):
        assert json.loads(path.read_text()) == "old" and json.loads(source.read_text()) == "new"
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        patched.setattr(os, "replace", full)
        write_json(path, "new")
    assert json.loads(path.read_text()) == "old" and os.listdir(tmp_path) == ["x.json"]


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_link_targets_are_not_changed(tmp_path, link):
    write_json(tmp_path / "own.json", "theirs")
    link(tmp_path / "own.json", tmp_path / "x.json")
    write_json(tmp_path / "x.json", "ours")
    assert [json.loads((tmp_path / name).read_text()) for name in ("own.json", "x.json")] == ["theirs", "ours"]
    assert not (tmp_path / "x.json").is_symlink()


def test_manifest_with_an_impossible_file_name(tmp_path):
    name = "x" * 300
    (tmp_path / "manifest.json").write_text(json.dumps({"files": {name: {"size": 0, "sha256": ""}}}))
    assert damage(tmp_path) == f"{name} is missing"


@pytest.mark.parametrize("size", [0, 5, 2**20, 2**21 + 3])
def test_sha256_of_a_file_of_any_size(tmp_path, size):
    content = os.urandom(size)
    (tmp_path / "x").write_bytes(content)
    assert sha256(tmp_path / "x") == hashlib.sha256(content).hexdigest()


def test_last_name_of_paths(tmp_path, monkeypatch):
    """The name of a link is kept, since the user chose it."""
    (tmp_path / "model").mkdir()
    (tmp_path / "my-encoder").symlink_to("model")
    monkeypatch.chdir(tmp_path / "model")
    assert last_name(tmp_path / "my-encoder") == last_name(f"{tmp_path}/my-encoder/") == "my-encoder"
    assert last_name(".") == "model" and last_name("me/other") == "other"
