"""Fingerprints of files, and messages about differences."""

import hashlib
import os

import pytest

from informin.training import fingerprints
from informin.training.fingerprints import changed_inputs, fingerprint


def test_fingerprint_of_a_file(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"words")
    expected = {"name": "a.txt", "size": 5, "sha256": hashlib.sha256(b"words").hexdigest()}
    assert fingerprint(tmp_path / "a.txt") == expected


@pytest.mark.parametrize("place, seen", [(0, True), (2**20 - 1, True), (2**20 // 2 + 100, False)])
def test_fingerprint_of_a_large_file_covers_start_and_end(tmp_path, monkeypatch, place, seen):
    monkeypatch.setattr(fingerprints, "LARGE", 2**16)
    monkeypatch.setattr(fingerprints, "BLOCKS", 5)
    monkeypatch.setattr(fingerprints, "BLOCK_BYTES", 64)
    path = tmp_path / "large"
    path.write_bytes(os.urandom(2**20))
    before = fingerprint(path)
    assert fingerprint(path) == before
    with open(path, "r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1]))
    assert (fingerprint(path) != before) is seen


def test_fingerprints_depend_on_order_but_not_on_names():
    one, other = ({"name": "a", "size": 1, "sha256": "x" * 64}, {"name": "b", "size": 1, "sha256": "y" * 64})
    assert changed_inputs({"files": [one]}, {"files": [one | {"name": "c"}]}) == []
    assert changed_inputs({"files": [one, other]}, {"files": [other, one]}) != []
    assert changed_inputs({"files": [one]}, {"files": [other]}) == [
        "files a (1 byte, SHA-256 xxxxxxxx), now b (1 byte, SHA-256 yyyyyyyy)"
    ]
    assert changed_inputs({}, {"files": [one]}) == ["files none, now a (1 byte, SHA-256 xxxxxxxx)"]


def test_edited_inputs_count_as_changed():
    file = {"name": "a", "size": 1, "sha256": "x" * 64}
    for value in ([{"name": "a"}], [file | {"size": "1"}], [1], {"a": 1}, 1.5):
        (message,) = changed_inputs({"files": value}, {"files": [file]})
        assert message == f"files {value!r:.60}, now a (1 byte, SHA-256 xxxxxxxx)"
