"""YAML files with limits, and one-line errors for files that cannot be read."""

import os

import pytest

from informin.yamlfiles import MOST_CHARACTERS, parse_yaml, read_mapping
from tests.conftest import raises_usage

LAUGHS = "a0: &a0 [lol, lol]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))


def test_values_are_of_json_types():
    text = "a: 1e-4\nb: [1, -2, 0x10, .inf, null, yes]\nc: {d: 'x'}\nday: 2026-11-23\nbad: 2020-13-45\n"
    read = {"a": "1e-4", "b": [1, -2, 16, float("inf"), None, True], "c": {"d": "x"}}
    assert parse_yaml(text, "it") == read | {"day": "2026-11-23", "bad": "2020-13-45"}


@pytest.mark.parametrize(
    "text, problem",
    [
        (LAUGHS, "found the alias *a0; write the value out"),
        ("a: &x {b: 1}\nc: {<<: *x}", "found the alias *x; write the value out"),
        ("a: &x [*x]", "found the alias *x"),
        ("a: 1\nb: 2\na: 3", "found 'a' twice"),
        ("a: 1 " * MOST_CHARACTERS, "found 500,000 characters of YAML; expected up to 100,000"),
        ("[" * 3000, "lists or mappings are nested too deeply"),
        ("a: 9223372036854775808", "found an integer of more than 63 bits"),
        ("a: 0x" + "F" * 9000, "found an integer of more than 63 bits"),
        ("a: 1" + "0" * 5000, "Exceeds the limit"),
        ('a: "\\ud800"', r"'\ud800' contains a character that is not allowed"),
        ('a: "\\0"', r"'\x00' contains a character that is not allowed"),
        ("a: !!set {b}", "found tag:yaml.org,2002:set, which is not supported"),
        ("a: !!binary aGk=", "found tag:yaml.org,2002:binary, which is not supported"),
        ("a: !!python/object:os.system 1", "could not determine a constructor"),
        ("a: !!bool x", "'x'"),
        ("a: !!int x", "invalid literal"),
        ("a: !!float ''", "string index out of range"),
        ("? [1]\n: 2", "found unhashable key"),
        ("a: [1", "expected ',' or ']'"),
        ("a: \x07", "special characters are not allowed"),
    ],
)
def test_invalid_yaml_is_rejected(text, problem):
    with raises_usage(found="it cannot be read: ") as caught:
        parse_yaml(text, "it")
    assert problem in str(caught.value) and "\n" not in str(caught.value)


def test_unreadable_files_are_rejected(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "latin").write_bytes(b"a: \xe9\n")
    (tmp_path / "list").write_text("[1]")
    problems = {
        "fifo": "is not a regular file",
        "latin": "can't decode byte",
        "list": "it: found list",
        "nowhere": "No such file",
        "a\0b": "null byte",
    }
    for name, problem in problems.items():
        with raises_usage(found=problem):
            read_mapping(tmp_path / name, "it", "a mapping")
