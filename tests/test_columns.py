"""Several columns as one text, and the other columns of a file next to its vectors."""

import csv
import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from informin.columns import column_names, other_columns, read_cells
from informin.jobs.text_files import read_texts
from informin.textfiles import read_sentences
from informin.training.data_options import DataArguments
from informin.training.sentences import load_sentences
from tests.conftest import raises_usage

ROWS = [
    {"id": 7, "subject": "Printer", "body": "It is on fire.\nHelp!", "file": "a"},
    {"id": 8, "subject": "", "body": " ", "file": "b"},
    {"id": 9, "subject": "", "body": "Where is my order?", "file": "c"},
]
TEXTS = ["Printer\nIt is on fire.\nHelp!", "Where is my order?"]


def save_csv(path):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*ROWS[0]])
        writer.writeheader()
        writer.writerows(ROWS)


def save_jsonl(path):
    path.write_text("".join(json.dumps(row | {"vector": [1, 2]}) + "\n" for row in ROWS))


def save_parquet(path):
    table = pa.Table.from_pylist(ROWS).append_column("image", pa.array([b"\xff", b"\xff", None]))
    pq.write_table(table.append_column("vector", pa.array([[1], [2], [3]])), path)


@pytest.fixture(params=[save_csv, save_jsonl, save_parquet], ids=["csv", "jsonl", "parquet"])
def path(request, tmp_path):
    path = tmp_path / f"tickets.{request.param.__name__.removeprefix('save_')}"
    request.param(path)
    return path


def test_columns_are_joined_without_blank_cells(path):
    assert list(read_sentences(path, "subject, body")) == [TEXTS[0], "", TEXTS[1]]
    assert next(iter(read_sentences(path, "body,subject"))) == "It is on fire.\nHelp!\nPrinter"
    with raises_usage(found="no column 'title'", fix="text_column"):
        list(read_sentences(path, "subject,title"))


def test_training_reads_joined_columns(path):
    assert load_sentences(DataArguments([str(path)], "subject,body"), 0)["text"][:] == TEXTS
    stream = DataArguments([str(path)], "subject,body", streaming=True)
    assert {row["text"] for row in load_sentences(stream, 0)} == set(TEXTS)
    with raises_usage(found="no column 'title'", fix="text_column"):
        load_sentences(DataArguments([str(path)], "subject,title"), 0)


def test_a_data_set_has_joined_columns(monkeypatch):
    data = datasets.Dataset.from_list(ROWS)
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: data)
    found = load_sentences(DataArguments(dataset_name="org/tickets", text_column="subject,body"), 0)
    assert found.column_names == ["text"] and found["text"][:] == TEXTS


def test_categories_are_columns_and_bytes_do_not_stand_alone(tmp_path):
    """pandas writes categories as a dictionary."""
    kinds = pa.array(["x", "y"]).dictionary_encode()
    pq.write_table(pa.table({"text": ["a", "b"], "id": ["1", "2"], "kind": kinds}), tmp_path / "a.parquet")
    assert other_columns(tmp_path / "a.parquet", None) == ["id", "kind"]
    assert list(read_cells(tmp_path / "a.parquet", ["id", "kind"])) == [("1", "x"), ("2", "y")]
    pq.write_table(pa.table({"text": [b"a", b"b"], "id": ["1", "2"]}), tmp_path / "b.parquet")
    assert other_columns(tmp_path / "b.parquet", None) == ["id"]


def test_a_column_of_a_text_file_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("id\tbody\n1\tthe dog\n")
    for read in (
        lambda: read_texts([str(tmp_path / "a.txt")], "body"),
        lambda: load_sentences(DataArguments([str(tmp_path / "a.txt")], "body"), 0),
    ):
        with raises_usage(option="text_column", found="a.txt is a text file, which has no columns"):
            read()


def test_another_column_may_be_long(tmp_path):
    (tmp_path / "a.csv").write_text(f"text,html\nthe dog,{'x' * 140_000}\n")
    assert list(read_sentences(tmp_path / "a.csv", "text")) == ["the dog"]


def test_a_text_file_has_no_columns(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    assert list(read_sentences(tmp_path / "a.txt", "subject,body")) == ["one", "two"]
    assert column_names(tmp_path / "a.txt") == []


def test_cells_of_other_columns(path):
    assert column_names(path) == ["id", "subject", "body", "file"]
    assert other_columns(path, "subject,body") == ["id", "file"]
    assert list(read_cells(path, ["id", "file"])) == [("7", "a"), ("8", "b"), ("9", "c")]


def test_the_only_column_has_no_others(tmp_path):
    (tmp_path / "a.csv").write_text("words\none\n")
    assert other_columns(tmp_path / "a.csv", None) == []
    (tmp_path / "b.csv").write_text("text,id,id\none,1,2\n")
    assert other_columns(tmp_path / "b.csv", None) == []  # two columns of one name


def test_the_rows_of_vectors_have_the_other_columns(path, tmp_path):
    texts, source = read_texts([str(path)], "subject,body")
    assert texts == TEXTS
    source.save(tmp_path / "x.npy")
    with (tmp_path / "x.rows.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    expected = [("0", "7", "a"), ("2", "9", "c")]
    assert [(row["row"], row["id"], row["file.1"]) for row in rows] == expected
    assert {row["file"] for row in rows} == {str(path)}
    assert source.told(tmp_path / "x.npy").endswith("without a header), and its id, file\n")
    source.refuse_other(tmp_path / "x.npy")
    other = read_texts([str(path)], "body")[1]
    with raises_usage(found="lists other rows"):
        other.refuse_other(tmp_path / "x.npy")


def test_files_with_different_columns(tmp_path):
    (tmp_path / "a.csv").write_text("text,id\none,1\n")
    (tmp_path / "b.txt").write_text("two\n")
    (tmp_path / "c.jsonl").write_text('{"text": "three", "day": "Monday"}\n')
    source = read_texts([str(tmp_path / name) for name in ("a.csv", "b.txt", "c.jsonl")])[1]
    source.save(tmp_path / "x.npy")
    lines = (tmp_path / "x.rows.tsv").read_text().splitlines()
    assert lines[0] == "file\trow\tid\tday"
    assert [line.partition(str(tmp_path))[2].split("\t")[1:] for line in lines[1:]] == [
        ["0", "1", ""],
        ["0", "", ""],
        ["0", "", "Monday"],
    ]


def test_nothing_is_written_without_other_columns_or_blank_rows(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    source = read_texts([str(tmp_path / "a.txt")])[1]
    source.save(tmp_path / "x.npy")
    assert not (tmp_path / "x.rows.tsv").exists() and source.told(tmp_path / "x.npy") == ""
