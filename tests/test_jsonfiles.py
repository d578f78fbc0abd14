"""JSON Lines and JSON arrays: records, line numbers, errors."""

import json

import pytest

from informin import jsonfiles
from informin.jsonfiles import json_records
from informin.textfiles import read_sentences
from tests.conftest import raises_usage


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "a.json"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
@pytest.mark.parametrize(
    "text, expected",
    [
        ('[{"text": "one"},\n\n {"text": "two", "n": [1, {}]},\n null]', [(1, "one"), (3, "two"), (4, "")]),
        ('\ufeff\n [\n"one",\n"two" ]\n', [(3, "one"), (4, "two")]),
        ("[]", []),
        ('["a]", "[b,"]', [(1, "a]"), (1, "[b,")]),
    ],
)
def test_array_is_read_with_the_lines_of_its_items(write, name, text, expected):
    path = write(text, name)
    assert [(number, record.get("text", "")) for number, record in json_records(path)] == expected
    assert list(read_sentences(path, None)) == [text for _, text in expected]


@pytest.mark.parametrize("indent", [None, 1])
def test_array_of_any_objects_is_read_as_json_reads_it(write, indent):
    records = [{"text": f'{i} [,]\n"', "n": i, "more": {"list": [1, "]"]}} for i in range(20)]
    assert [record for _, record in json_records(write(json.dumps(records, indent=indent)))] == records


@pytest.mark.parametrize(
    "text, found",
    [
        ('["a",\n5]', "line 2: found 5 in the array"),
        ('["a",\n["b"]]', 'line 2: found ["b"] in the array'),
        ('["a",\n]', "line 2: not JSON ("),
        ('["a"\n"b"]', "line 2: not JSON ("),
        ('["a",,"b"]', "line 1: not JSON ("),
        ('["a"', "line 1: not JSON ("),
        ('["a"]\n["b"]', "line 2: not JSON (Text after the array"),
        ("[" * 100_000, "line 1: not JSON ("),
        ('{\n "text": ["a"]\n}', "line 1: not JSON ("),
    ],
)
def test_errors_name_the_line(write, text, found):
    path = write(text)
    with raises_usage(found=f"{path}, {found}"):
        list(json_records(path))


def test_error_about_a_text_names_the_line_of_its_item(write):
    with raises_usage(found="line 3: the text column contains 5"):
        list(read_sentences(write('[{"text": "a"},\n\n{"text": 5}]'), None))
    with raises_usage(found="line 2: '\\ud800' is not valid Unicode"):
        list(read_sentences(write('["a",\n"\\ud800"]'), None))


def test_too_large_array_is_rejected_with_the_command_that_converts_it(write, monkeypatch):
    monkeypatch.setattr(jsonfiles, "MOST_BYTES", 50)
    with raises_usage(found="is a JSON array of more than 50 characters", fix="jq -c '.[]' a.json > a.jsonl"):
        list(json_records(write("[\n" + '"some text",\n' * 10 + "null]")))


def test_one_warning_counts_rows_without_the_column(write, caplog):
    path = write('{"id": 1, "text": "one"}\n{"id": 2}\n{"id": 3, "text": null}\n{"id": 4}\n', "a.jsonl")
    assert list(read_sentences(path, None)) == ["one", "", "", ""]
    assert caplog.messages == [f"{path}: 2 rows without 'text', the first is line 2. They are read as blank."]
