"""Reading texts and tables as they are, choosing a column, and errors that name the file."""

import codecs
import gzip
import json
import logging
import os
import subprocess
import sys
from itertools import chain

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from informin.errors import UsageError
from informin.texts import (
    SEPARATORS,
    as_number,
    as_sentence,
    as_texts,
    find_files,
    is_blank,
    read_columns,
    read_documents,
    read_rows,
    read_shard,
    read_texts,
)
from tests.conftest import raises_usage


@pytest.fixture
def write(tmp_path):
    """Return a function that writes text, bytes, or JSON records (a list), compressed if the name ends in .gz."""

    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            content = "".join(f"{json.dumps(record)}\n" for record in content)
        content = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(content) if name.lower().endswith(".gz") else content)
        return path

    return write


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    "name, content, expected",
    [
        ("a.txt", "one\r\ntwo\r\n", ["one", "two"]),
        ("a.txt", "\n\n one \n \t\nlast", [" one ", "last"]),
        ("a.txt", "", []),
        ("a.txt", codecs.BOM_UTF8 + "é\n".encode(), ["é"]),
        ("a.txt", "one\n\ufefftwo\n", ["one", "two"]),  # files that were concatenated
        ("a.txt", "a\u2028b\x85c\x0bd\x0ce\rf\nNA\n", ["a\u2028b\x85c\x0bd\x0ce\rf", "NA"]),
        ("a.csv", "\ufefftext,id\r\nNA,1\r\nnull,2\r\n", ["NA", "null"]),
        (
            "a.csv",
            'id,text\n1,"He said ""yes"", and left."\n\n2,\n3,"one\ntwo"\n',
            ['He said "yes", and left.', "one\ntwo"],
        ),
        ("a.csv", "title\n007\n1e3\n", ["007", "1e3"]),
        ("a.csv", "\n\nid,text\n1,one\n2\n", ["one"]),
        ("a.csv", "text,id\none,1,,\n", ["one"]),  # some programs end every line with empty fields
        ("a.csv", "id,sentence\n1,one\n", ["one"]),
        ("a.csv", "id, text\n1,one\n", ["one"]),  # some programs write a space after each comma
        ("a.csv", "sentence,text\nx,one\n", ["one"]),
        ("a.csv", "text\n", []),
        ("a.csv", "", []),
        ("A.TSV", 'id\ttext\n1\tone, two\n2\tit\'s "fine"\n', ["one, two", 'it\'s "fine"']),
        ("a.jsonl", '{"text": "one\\ntwo", "n": 1}\r\n\n{"n": 2, "text": null}\n{"text": "NA"}\n', ["one\ntwo", "NA"]),
        ("a.jsonl", [{"text": "one", "id": 1}, {"id": 2}, {"text": "three", "id": 3}], ["one", "three"]),
        ("a.jsonl", [{"title": "one"}], ["one"]),
        ("a.jsonl", "", []),
    ],
)
def test_texts_are_read_as_they_are(write, suffix, name, content, expected):
    assert list(read_texts(write(name + suffix, content))) == expected


@pytest.mark.parametrize("ending", ["file", "stream", "parquet"])
def test_columns_of_arrow_and_parquet_files(tmp_path, ending):
    """Also in a folder whose name `datasets` would take for a pattern."""
    table = pa.table({"n": [1, 2, 3], "text": ["one", None, "two\nlines"], "title": ["A", "B", None]})
    path = tmp_path / "a[b]*" / ("x.parquet" if ending == "parquet" else "x.arrow")
    path.parent.mkdir()
    if ending == "parquet":
        pq.write_table(table, path, row_group_size=2)
    else:
        create = pa.ipc.new_file if ending == "file" else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as file, create(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    assert list(read_texts(path)) == ["one", "two\nlines"]
    assert list(read_texts(path, "title,text")) == ["A one", "B", "two\nlines"]
    with raises_usage("text_column"):
        list(read_texts(path, "other"))
    with raises_usage(needed="text"):
        list(read_texts(path, "n"))


def test_only_tables_with_a_header_line_may_lack_it(write):
    for name, content in (("a.jsonl", [{"a": "x", "b": "y"}]), ("a.csv", "a,b\n")):
        with raises_usage(fix="`text_column`") as info:
            list(read_texts(write(name, content)))
        assert ("first line" in info.value.fix) == (name == "a.csv")


@pytest.mark.parametrize("column, expected", [("a", ["1", "3"]), ("b,a", ["x 1", "3", "y"]), ("b, c", ["x z", "y"])])
def test_chosen_columns_are_joined_by_a_space(write, column, expected):
    table = "a,b,c\n1,x,z\n3,,\n,y, \n"
    assert list(read_texts(write("a.csv", table), column)) == expected
    assert list(read_texts(write("a.tsv", table.replace(",", "\t")), column)) == expected


@pytest.mark.parametrize(
    "name, content, column, option, found",
    [
        ("a.csv", "a,b\n1,2\n", None, None, "a.csv has the columns a, b"),
        ("a.csv", "a,b\n1,2\n", "c", "text_column", "'c', and "),
        ("a.csv", "text,b\n1,2\n", "text,c", "text_column", "'c', and "),
        ("a.csv", "text,text\n1,2\n", None, "text_column", "needs one column 'text'"),
        ("a.jsonl", [{"a": "x", "b": "y"}], None, None, "a.jsonl has the columns a, b"),
        ("a.csv", "text\none\nYes, he did.\n", None, None, "a.csv, line 3: found 2 fields, but the header has 1"),
        ("a.tsv", "id\ttext\n1\ta\tb\n", None, None, "a.tsv, line 2: found 3 fields, but the header has 2"),
        ("a.csv", 'text\none\n"two\nthree\n', None, None, "a.csv, line 4: "),
        ("a.csv", 'text\n"two" she said\n', None, None, "a.csv, line 2: "),
        ("a.csv", "text\none\rtwo\n", None, None, "a.csv, line 2: a carriage return"),
        ("a.jsonl", '{"text": "a"}\n{"text": "b"', None, None, "a.jsonl, line 2: not JSON"),
        ("a.jsonl", '{"text": "a"}\n["b"]\n', None, None, "a.jsonl, line 2: found "),
        ("a.jsonl", [{"text": "a"}, {"text": 5}], None, None, "a.jsonl, line 2: the column text contains 5"),
        ("a.jsonl", [{"text": ["a"]}], None, None, "a.jsonl, line 1: the column text contains ['a']"),
        ("a.jsonl", '{"text": "a"}\n\n{"text": 5}\n', None, None, "a.jsonl, line 3: "),
        ("a.txt", b"fine\n\nna\xefve\n", None, None, "a.txt, line 3: "),
        ("a.csv", b"text\nna\xefve\n", None, None, "a.csv, line 2: "),
        ("a.txt", b"text\nmore\0\n", None, None, "a.txt, line 2: found a zero byte"),
        ("a.txt", "text\n".encode("utf-16"), None, None, "a.txt, line 1: "),
        ("a.csv", "text\none\n".encode("utf-16-le"), None, None, "a.csv, line 1: found a zero byte"),
        ("a.txt", "one\n", "text", "text_column", "has no columns"),
    ],
)
def test_files_that_would_be_read_wrongly_are_rejected(write, name, content, column, option, found):
    with raises_usage(option, found=found):
        list(read_texts(write(name, content), column))


@pytest.mark.parametrize("separator", SEPARATORS)
@pytest.mark.parametrize("column", [None, "text"])
def test_separators_that_are_not_commas_are_named(write, separator, column):
    path = write("a.csv", f"id{separator}text\n1{separator}the dog\n")
    with pytest.raises(UsageError) as raised:
        list(read_texts(path, column))
    assert SEPARATORS[separator] in raised.value.fix


@pytest.mark.parametrize("first", ["The dog runs.", "the old dog", "猫が寝ています。", "A fine film,1", "id;text"])
@pytest.mark.parametrize("column", [None, "txet"])
def test_the_first_row_of_a_table_without_header_is_not_lost(write, first, column):
    with raises_usage(column and "text_column", found="a.csv"):
        list(read_texts(write("a.csv", f"{first}\nThe cat.\n"), column))


def test_one_warning_for_quoted_fields_of_tsv(write, caplog):
    path = write("a.tsv", 'text\tn\nplain\t1\n"He said ""no"""\t2\n"two"\t3\n')
    assert list(read_texts(path)) == ["plain", '"He said ""no"""', '"two"']
    assert len(caplog.messages) == 1 and "line 3" in caplog.messages[0] and "quotation mark" in caplog.messages[0]
    caplog.clear()
    list(read_texts(write("b.tsv", 'text\tn\n"over two\t1\nlines"\t2\n')))
    assert len(caplog.messages) == 1
    caplog.clear()
    list(read_texts(write("c.tsv", 'text\tn\nHe said "no"\t2\n"svn up" fails\t3\n"No" is "no"\t4\n')))
    assert not caplog.messages, "quotations that the texts have themselves"


@pytest.mark.parametrize(
    "damage", [lambda data: data[:60], lambda data: data[:20] + b"\xff" * 9 + data[29:], bytes.lower]
)
def test_error_names_a_damaged_compressed_file(write, damage):
    path = write("a.txt.gz", "".join(f"line {i} of many\n" for i in range(1000)))
    path.write_bytes(damage(path.read_bytes()))
    with raises_usage(found="a.txt.gz"):
        list(read_texts(path))


def test_texts_are_read_one_by_one(write):
    """Files of any size: an error in a later row does not hide the rows before it."""
    path = write("a.csv", "text\n" + "one\n" * 10_000 + "a,b\n")
    texts = read_texts([path, path])
    assert [next(texts) for _ in range(10_000)] == ["one"] * 10_000
    with raises_usage(found="line 10002"):
        next(texts)


@pytest.mark.parametrize("count", [1, 2, 7, 11])
def test_shards_are_contiguous_and_of_equal_size(write, count):
    files = [write("a.txt", "".join(f"{number}\n\n" for number in range(7))), write("b.csv", "text\n7\n8\n9\n10\n")]
    shards = [read_shard(files, None, (number, count)) for number in range(1, count + 1)]
    assert list(chain.from_iterable(shards)) == list(map(str, range(11)))
    assert {len(shard) for shard in shards} <= {11 // count, -(-11 // count)}


def test_files_in_folders(write, tmp_path):
    """In a fixed order, without hidden files and folders and without other suffixes."""
    for name in ("b.csv", "a/z.txt.gz", "a/b.jsonl", ".hidden.txt", ".ipynb_checkpoints/b.csv", "notes.md", "x.json"):
        write(name, "text\none\n" if name.endswith("csv") else "")
    write("a/z.txt.gz", "two\n")
    names = [path.relative_to(tmp_path).as_posix() for path in find_files(tmp_path)]
    assert names == ["a/b.jsonl", "a/z.txt.gz", "b.csv"]
    assert list(read_texts(str(tmp_path))) == list(read_texts([tmp_path / "a", tmp_path / "b.csv"])) == ["two", "one"]
    assert find_files([tmp_path / ".hidden.txt"]) == [tmp_path / ".hidden.txt"]


def test_links_in_folders_are_followed_and_no_folder_is_read_twice(write, tmp_path):
    """A dataset is often a folder of links to folders on another disk."""
    write("disk/more/b.txt", "two\n")
    write("disk/c.txt", "three\n")
    write("data/a.txt", "one\n")
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "disk")
    (tmp_path / "data" / "again").symlink_to(tmp_path / "disk" / "more")
    (tmp_path / "disk" / "loop").symlink_to(tmp_path / "data")
    assert sorted(read_texts(tmp_path / "data")) == ["one", "three", "two"]


def test_texts_of_an_index_in_the_folder_are_not_read_again(write, tmp_path):
    """Otherwise, `informin index --overwrite` would index each text twice, and removed texts again."""
    write("my.txt", "mine\n")
    for place in ("index/index-data-a", "index-data-b"):  # the second one is the user's own
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "texts.jsonl").write_text('{"text": "a copy"}\n')
    (tmp_path / "index" / "index.json").write_text("{}")
    assert list(read_texts(tmp_path)) == ["a copy", "mine"]


def test_a_subfolder_that_cannot_be_read_is_an_error(write, tmp_path, monkeypatch):
    write("data/a.txt", "one\n")
    write("data/closed/b.txt", "two\n")
    scandir = os.scandir

    def closed(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(PermissionError):
        list(read_texts(tmp_path / "data"))


def test_skipped_files_are_counted(write, tmp_path, caplog):
    for name in ("a.txt", "b.json", "c.txt.zst", "d.parquet.gz", ".hidden.json"):
        write(name, "one\n")
    with caplog.at_level(logging.INFO, "informin"):
        assert list(read_texts(tmp_path)) == ["one"]
    assert [record.getMessage() for record in caplog.records if "3 files" in record.getMessage()]
    with raises_usage("train_file", found="unsupported suffix"):
        find_files(tmp_path / "d.parquet.gz")


@pytest.mark.parametrize(
    "name, found", [("gone.txt", "does not exist"), ("a.json", "suffix"), ("d", "no file of texts")]
)
def test_paths_that_are_not_files_of_texts(write, tmp_path, name, found):
    write("a.json", "{}")
    write("d/a.md", "")
    with raises_usage("train_file", found=found):
        read_texts([tmp_path / name])


PAIRS = ["sentence1", "sentence2", "score"]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    "name, content, score",
    [
        ("a.tsv", "sentence1\tsentence2\tscore\tid\nA, b\t\t4.5\tx\n\nNA\t c \t0\n", str),
        ("a.csv", '\ufeffid,sentence1,sentence2,score\r\nx,"A, b"," ",4.5\r\n,NA, c ,0\r\n', str),
        (
            "a.jsonl",
            [
                {"sentence1": "A, b", "sentence2": None, "score": 4.5, "id": "x"},
                {"sentence1": "NA", "sentence2": " c ", "score": 0},
            ],
            float,
        ),
    ],
)
def test_rows_by_column(write, suffix, name, content, score):
    """A row has all columns of the file; empty cells and missing optional columns are None."""
    rows = list(read_rows(write(name + suffix, content), PAIRS, "eval_pairs", ["relevance"]))
    assert [row.pop("id", None) for row in rows] == ["x", None]
    expected = [("A, b", None, score("4.5"), None), ("NA", " c ", score("0"), None)]
    assert rows == [dict(zip([*PAIRS, "relevance"], row)) for row in expected]


@pytest.mark.parametrize(
    "name, content, option, found",
    [
        ("a.tsv", "sentence1\tsentence2\nx\ty\n", "eval_pairs", "'score', and "),
        ("a.tsv", "A\tb\t4\n", "eval_pairs", "a.tsv has the columns A, b, 4"),
        ("a.csv", "sentence1,sentence2,score,score\n", "eval_pairs", "one column 'score'"),
        ("a.csv", "", "eval_pairs", "a.csv is empty"),
        (
            "a.jsonl",
            [{"sentence1": "x", "sentence2": "y"}],
            "eval_pairs",
            "a.jsonl has the columns sentence1, sentence2",
        ),
        ("a.csv", "sentence1,sentence2,score\nYes, he did,b,4\n", None, "a.csv, line 2: found 4 fields"),
        ("a.txt", "sentence1\n", "eval_pairs", "suffix"),
    ],
)
def test_tables_without_the_columns_are_rejected(write, name, content, option, found):
    with raises_usage(option, found=found):
        list(read_rows(write(name, content), PAIRS, "eval_pairs"))


def test_missing_tables_are_rejected(tmp_path):
    for path in (tmp_path, tmp_path / "gone.tsv"):
        with raises_usage("eval_pairs", found="does not exist"):
            list(read_rows(path, PAIRS, "eval_pairs"))


@pytest.mark.parametrize(
    "text, blank", [(None, True), ("", True), (" \t\n\u3000", True), ("NA", False), (" a ", False)]
)
def test_blank_texts(text, blank):
    assert is_blank(text) is blank


@pytest.mark.parametrize(
    "texts",
    [
        ["one", "two"],
        ("one", "two"),
        iter(["one", "two"]),
        np.array(["one", "two"]),
        pd.Series(["one", "two"], index=[7, 8]),
        datasets.Dataset.from_dict({"text": ["one", "two"]})["text"],
        {"one": 1, "two": 2}.keys(),
    ],
    ids=lambda texts: type(texts).__name__,
)
def test_lists_of_texts(texts):
    texts = as_texts(texts)
    assert texts == ["one", "two"] and type(texts) is list and all(type(text) is str for text in texts)


@pytest.mark.parametrize(
    "texts",
    [
        "one",
        b"one",
        None,
        5,
        ["one", None],
        [1],
        [["one"]],
        np.array([1.0]),
        pd.Series(["a", np.nan]),
        pd.DataFrame({"text": ["one"]}),  # whose items are the names of columns
        {"train": ["one"]},
        {"one", "two"},  # in another order in each process
    ],
    ids=lambda texts: type(texts).__name__,
)
def test_other_than_lists_of_texts(texts):
    with raises_usage("sentences"):
        as_texts(texts, "sentences")


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"ok", b"caf\xe9"], pa.binary()).view(pa.string()),
        pa.array([0, 2**52], pa.timestamp("s")),  # a year that Python does not have
    ],
    ids=["not UTF-8", "date"],
)
def test_values_that_python_cannot_hold_are_an_error(tmp_path, column, ending):
    table, path = pa.table({"text": column}), tmp_path / f"a.{ending}"
    if ending == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_stream(path, table.schema) as file:
            file.write_table(table)
    with raises_usage(found="a."):
        list(read_texts(path))


def test_importing_keeps_a_larger_limit_of_csv():
    code = "import csv; csv.field_size_limit(2**40); import informin.texts; assert csv.field_size_limit() == 2**40"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_errors_about_items_and_cells_name_the_row(tmp_path):
    with raises_usage("texts", found="5 in row 1"):
        as_texts(["one", 5])
    pq.write_table(pa.table({"text": [["one"]]}), tmp_path / "a.parquet")
    with raises_usage(found="a.parquet, row 0: the column text contains ['one']"):
        list(read_texts(tmp_path / "a.parquet"))
    path = tmp_path / "pairs.csv"
    path.write_text('sentence1,sentence2,score\n"one\ntwo",three,1\nfour,five,x\n')
    first, second = read_rows(path, PAIRS, "eval_pairs")
    assert as_sentence(first, "sentence1") == "one\ntwo" and as_number(first, "score") == 1
    with raises_usage(found="pairs.csv, line 4: the column score contains 'x'"):
        as_number(second, "score")


def test_blank_texts_are_counted_in_a_message(tmp_path, caplog):
    """Rows of an array of embeddings are otherwise those of other rows of the file, without a word."""
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": null}\n{"text": "two"}\n{"text": " "}\n')
    with caplog.at_level(logging.INFO, "informin"):
        assert list(read_texts(tmp_path / "a.jsonl")) == ["one", "two"]
    assert [record.getMessage().split()[0] for record in caplog.records] == ["2"]


def test_blank_texts_can_be_kept(tmp_path):
    """The place of a text is then that of its line."""
    (tmp_path / "a.txt").write_text("one\n\ntwo\n \n")
    assert list(read_texts(tmp_path / "a.txt", keep_blank=True)) == ["one", "", "two", " "]
    assert list(read_texts(tmp_path / "a.txt")) == ["one", "two"]


def test_half_a_surrogate_pair_becomes_the_replacement_character(tmp_path):
    """Programs that cut texts at a number of UTF-16 units write it to JSON, and no tokenizer takes it."""
    lines = [r'{"text": "cut \ud83d"}', r'{"text": "whole \ud83d\ude42", "id": "\udc00"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert list(read_texts(tmp_path / "a.jsonl")) == ["cut \ufffd", "whole \U0001f642"]
    (_, last) = read_documents(tmp_path / "a.jsonl", "text", {"id": "id_column"})
    assert last == ("whole \U0001f642", {"id": "\ufffd"})
    assert as_texts(["cut \ud83d", "whole \U0001f642"]) == ["cut \ufffd", "whole \U0001f642"]


def test_a_part_without_rows_is_read_and_a_damaged_one_is_named(tmp_path):
    """Spark and filters write parts without rows."""
    parts = {"0": ["one", None], "1": [], "2": ["two"]}
    for name, texts in parts.items():
        table = pa.table({"text": pa.array(texts, pa.string()), "number": pa.array(range(len(texts)), pa.int64())})
        pq.write_table(table, tmp_path / f"part-{name}.parquet")
        with pa.ipc.new_stream(tmp_path / f"part-{name}.arrow", table.schema) as writer:
            writer.write_table(table)
    for kind in ("parquet", "arrow"):
        assert list(read_texts(sorted(tmp_path.glob(f"*.{kind}")))) == ["one", "two"]
    assert list(read_texts(tmp_path / "part-1.parquet")) == []
    for kind in ("parquet", "arrow"):
        whole = (tmp_path / f"part-2.{kind}").read_bytes()
        for damaged in (b"", whole[: len(whole) // 2], b"\0" * len(whole)):
            (tmp_path / f"part-2.{kind}").write_bytes(damaged)
            with raises_usage(found=f"part-2.{kind}"):
                list(read_texts(sorted(tmp_path.glob(f"*.{kind}"))))


def late(**columns: str) -> list[dict]:
    """Rows with titles, of which the last ones have further columns."""
    return [{"title": f"title {i}"} | (columns if i >= 1000 else {}) for i in range(1002)]


@pytest.mark.parametrize("rows", [late(text="body"), late(sentence="body"), [{}] * 1000 + [{"text": "body"}]])
def test_a_guessed_column_of_json_lines_is_that_of_all_rows(write, rows):
    with raises_usage(found="line 1001: the column"):
        list(read_texts(write("a.jsonl", rows), keep_blank=True))
    assert "body" in set(read_texts(write("b.jsonl", rows[::-1])))


def test_a_guessed_column_of_json_lines_with_further_columns(write):
    with raises_usage(found="line 1001: the column"):
        list(read_documents(write("a.jsonl", late(text="body")), None, {"title": "keep"}))


def test_named_columns_of_json_lines_may_begin_in_any_row(write):
    file = write("a.jsonl", late(url="u", body="b"))
    assert list(read_texts(file, "title,body"))[-2:] == ["title 1000 b", "title 1001 b"]
    assert [fields["url"] for _, fields in read_documents(file, "title", {"url": "keep"})][999:] == [None, "u", "u"]
    assert list(read_columns(file, ("title", "body")))[-1] == ("title 1001", "b")
    assert list(read_columns(file, ("a", "b"), ["title", "url"]))[-1] == ("title 1001", "u")
