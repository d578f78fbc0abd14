"""Atomic JSON files, checksums and manifests."""

import hashlib
import json
import os

import pytest

from informin.files import (
    MANIFEST,
    damage,
    last_name,
    manifest_files,
    read_json,
    set_usual_modes,
    sha256,
    write_json,
    write_manifest,
)
from tests.conftest import raises_usage

NAN = float("nan")


@pytest.mark.parametrize("indent", [1, 2])
def test_json_is_indented_and_keeps_unicode(tmp_path, indent):
    """Unicode is not escaped, and the file ends with a newline."""
    values = {"b": [1, 2.5, None], "a": "é 日本"}
    write_json(tmp_path / "x.json", values, indent=indent)
    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    assert text == json.dumps(values, indent=indent, ensure_ascii=False) + "\n" and "日本" in text
    assert os.listdir(tmp_path) == ["x.json"] and read_json(tmp_path / "x.json") == values


def test_names_that_are_not_utf8_are_saved(tmp_path):
    """In JSON as they are, and as the last part of a path as text that every program can print."""
    name = os.fsdecode(b"caf\xe9.txt")
    write_json(tmp_path / "x.json", {"file": name})
    assert read_json(tmp_path / "x.json") == {"file": name}
    assert last_name(f"folder/{name}") == "caf\\xe9.txt" and last_name("a/café") == "café"


@pytest.mark.parametrize("content", [b"{", b"", b"[1]", b"1", b'{"a": "\xff"}'])
def test_error_names_a_file_that_is_no_json_object(tmp_path, content):
    (tmp_path / "x.json").write_bytes(content)
    with raises_usage(found="x.json"):
        read_json(tmp_path / "x.json")


def test_missing_json(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"x\.json"):
        read_json(tmp_path / "x.json")


@pytest.mark.parametrize("value", [NAN, float("inf"), {"a": [NAN]}])
def test_nan_and_infinity_are_refused_and_the_earlier_file_is_kept(tmp_path, value):
    write_json(tmp_path / "x.json", [1])
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", value)
    assert json.loads((tmp_path / "x.json").read_text()) == [1] and os.listdir(tmp_path) == ["x.json"]


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_link_targets_are_not_changed(tmp_path, link):
    write_json(tmp_path / "other.json", "theirs")
    link(tmp_path / "other.json", tmp_path / "x.json")
    write_json(tmp_path / "x.json", "ours")
    assert [json.loads((tmp_path / name).read_text()) for name in ("other.json", "x.json")] == ["theirs", "ours"]
    assert not (tmp_path / "x.json").is_symlink()


@pytest.mark.parametrize("size", [0, 5, 2**21 + 3])
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


def test_files_get_the_usual_mode(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "weights").touch(0o600)
    before = os.umask(0o022)
    try:
        set_usual_modes(tmp_path)
    finally:
        os.umask(before)
    assert (tmp_path / "sub" / "weights").stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["sub", "weights"]


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "checkpoint-4"
    (folder / "adapter").mkdir(parents=True)
    (folder / "model.bin").write_bytes(b"weights")
    (folder / "adapter" / "config.json").write_text("{}")
    write_manifest(folder)
    return folder


def test_manifest_lists_all_files(checkpoint):
    assert {name: entry["size"] for name, entry in manifest_files(checkpoint).items()} == {
        "model.bin": 7,
        "adapter/config.json": 2,
    }
    assert damage(checkpoint) is None
    write_manifest(checkpoint)  # which does not list itself
    assert MANIFEST not in manifest_files(checkpoint) and damage(checkpoint) is None


def test_damage_of_a_checkpoint(checkpoint):
    (checkpoint / "model.bin").write_bytes(b"Weights")
    assert damage(checkpoint, contents=False) is None and "model.bin has changed" in damage(checkpoint)
    (checkpoint / "model.bin").write_bytes(b"weight")
    assert "model.bin has 6 bytes" in damage(checkpoint, contents=False)
    (checkpoint / "model.bin").unlink()
    assert damage(checkpoint, contents=False) == "model.bin is missing"
    assert "no such folder" in damage(checkpoint.parent / "checkpoint-8")


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"files": {"model'])
def test_checkpoint_with_a_damaged_manifest_is_incomplete(checkpoint, content):
    (checkpoint / MANIFEST).write_text(content)
    assert manifest_files(checkpoint) is None and "incomplete" in damage(checkpoint)
