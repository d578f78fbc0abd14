"""Whether the fields of a TSV file are quoted as in CSV: files of pandas, Excel and R, and files with marks as text."""

import csv
import io
import random

import pandas as pd
import pytest

from informin.textfiles import read_sentences
from tests.conftest import raises_usage


@pytest.fixture
def read(tmp_path):
    def read(text: str) -> list[str]:
        path = tmp_path / "a.tsv"
        path.write_text(text, encoding="utf-8", newline="")
        return list(read_sentences(path, None))

    return read


@pytest.mark.parametrize(
    "text, expected",
    [
        ('text\tlabel\nplain\ta\n"He said ""no"" twice"\tb\n"one\ntwo"\ta\nend\tb\n',
         ["plain", 'He said "no" twice', "one\ntwo", "end"]),
        ('text\tlabel\r\n"one\r\ntwo"\ta\r\n', ["one\ntwo"]),
        ('label\ttext\na\t"one\ntwo"\nb\tend\n', ["one\ntwo", "end"]),
        ('text\tlabel\n"one\ttwo"\ta\n', ["one\ttwo"]),
        ('text\n"one\ttwo"\n', ["one\ttwo"]),
        ('"text"\t"label"\n"one"\t"a"\n""\t"b"\n', ["one", ""]),  # all fields, as R does
        ('"text"\n"one\ntwo"\n', ["one\ntwo"]),
        ('text\n"""a"" b"\n"one\ntwo"\n', ['"a" b', "one\ntwo"]),
    ],
)  # fmt: skip
def test_quoted_fields(read, text, expected):
    assert read(text) == expected


@pytest.mark.parametrize(
    "texts",
    [
        ['"Hello," she said.', "plain"],
        ['"One', 'two"'],  # a passage of two sentences
        ['"Never closed', "plain"],
        ['5" nail', '"quoted"'],
        ['"quoted ""twice"""', '"Hello," she said.'],  # the second one cannot be quoted
        ['""', '"'],
        ['"a ""b"""', '"Never closed'],
        ['"One" and "two"', '"Whole, sentence."'],
    ],
)
@pytest.mark.parametrize("columns", [("text", "label"), ("label", "text")])
def test_marks_that_are_text_are_kept(read, texts, columns):
    rows = [{"text": text, "label": "a"} for text in texts]
    lines = ["\t".join(columns), *("\t".join(row[name] for name in columns) for row in rows)]
    assert read("\n".join(lines) + "\n") == texts


def test_a_row_with_fewer_fields_than_the_header_is_not_quoted(read):
    assert read('text\tlabel\tnote\n"One\ntwo"\ta\n') == ['"One', 'two"']


def test_one_warning_counts_fields_in_marks_that_nothing_else_shows_to_be_quoted(read, caplog):
    assert read('text\tlabel\nplain\ta\n"Whole, sentence."\tb\n"Another"\tb\n') == [
        *("plain", '"Whole, sentence."', '"Another"'),
    ]
    assert len(caplog.messages) == 1
    assert "2 rows with a field in quotation marks, the first in line 3. They are read as part" in caplog.messages[0]


def test_line_breaks_in_the_only_column_are_rejected_if_nothing_else_shows_quoting(read):
    with raises_usage(
        found="line 3: found a quotation mark that opens a text and closes in a later line", fix="as CSV"
    ):
        read('text\nplain\n"one\ntwo"\n')


@pytest.mark.parametrize("line", [2, 4])
def test_errors_name_the_line_of_a_quoted_row(read, line):
    rows = ['"one\n2"\ta', '"a ""b"""\ta', "x\ta"]
    rows.insert(line // 2 - 1, "x\ta\tb")
    with raises_usage(found=f"line {line}: found 3 fields, but the header has 2"):
        read("\n".join(["text\tlabel", *rows]))


def test_files_of_pandas_are_read_as_written(tmp_path):
    """Random texts of marks, tabs, line breaks and letters; the other column shows that the fields are quoted."""
    source, path = random.Random(3), tmp_path / "a.tsv"
    for _ in range(200):
        texts = ["".join(source.choices('""\t\nabc ,', k=source.randint(1, 12))) + "x" for _ in range(6)]
        frame = pd.DataFrame({"text": texts, "label": ['a "b"'] * 6})
        frame.to_csv(path, sep="\t", index=False)
        assert list(read_sentences(path, None)) == texts


def test_files_without_quoting_are_read_as_written(tmp_path):
    """Random texts of marks, tabs excluded, as in STS: a first row cannot be quoted."""
    source, path = random.Random(3), tmp_path / "a.tsv"
    for _ in range(200):
        texts = ['"a" b', *("".join(source.choices('""abc ,', k=source.randint(1, 12))) for _ in range(6))]
        out = io.StringIO()
        csv.writer(out, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None, lineterminator="\n").writerows(
            [("text", "label"), *((text, "a") for text in texts)]
        )
        path.write_text(out.getvalue(), encoding="utf-8")
        assert list(read_sentences(path, None)) == texts
