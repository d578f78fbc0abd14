"""Reading the sentences of a search page."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from informin.labeled_sentences import Sentences, load_labeled_sentences
from tests.conftest import raises_usage
from tests.demo.helpers import save


def test_text_files_have_no_labels(tmp_path):
    path = save(tmp_path / "a.txt", "one\n\n  \ntwo, three\n")
    assert load_labeled_sentences(path) == Sentences(["one", "two, three"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.tsv", "label\ttext\nx\tone\n\t\ny \ttwo\n\tthree\n"),
        ("a.csv", "text,label\none,x\n\ntwo,y\nthree\n"),
        ("a.jsonl", '{"text": "one", "label": "x"}\n\n{"text": "two", "label": "y"}\n{"text": "three", "label": null}'),
    ],
)
def test_labels_stay_with_their_sentences(tmp_path, name, text):
    """Blank rows are skipped together with their labels, and a missing label is blank."""
    found = load_labeled_sentences(save(tmp_path / name, text))
    assert found == Sentences(["one", "two", "three"], ["x", "y", ""])


def test_labels_that_are_not_text(tmp_path):
    path = save(tmp_path / "a.jsonl", '{"text": "one", "label": 3}\n{"text": "two", "label": ["é"]}')
    assert load_labeled_sentences(path).labels == ["3", '["é"]']
    pq.write_table(pa.table({"text": ["one", "", "two"], "label": [1, 2, None]}), tmp_path / "a.parquet")
    assert load_labeled_sentences(tmp_path / "a.parquet") == Sentences(["one", "two"], ["1", ""])


def test_a_column_of_sentences_is_not_a_label(tmp_path):
    path = save(tmp_path / "a.csv", "label,other\none,x\n")
    assert load_labeled_sentences(path, "label") == Sentences(["one"], columns={"other": ["x"]})
    assert load_labeled_sentences(path, "other") == Sentences(["x"], ["one"])


def test_a_warning_about_the_file_appears_once(tmp_path, caplog):
    load_labeled_sentences(save(tmp_path / "a.csv", 'id,text,label\n7,"one\ntwo",x\n'))
    assert caplog.text.count("of more than one line") == 1


def test_other_columns_stay_with_their_sentences(tmp_path):
    path = save(tmp_path / "a.csv", "id,subject,body,label\n7,one,two,x\n8,,,y\n9,three,,z\n")
    assert load_labeled_sentences(path, "subject,body") == Sentences(
        ["one\ntwo", "three"], ["x", "z"], {"id": ["7", "9"]}
    )


def test_wrong_files(tmp_path):
    with raises_usage(found="`train_file`: gone.txt does not exist"):
        load_labeled_sentences("gone.txt")
    with raises_usage("train_file", found="which has 2 lines and no sentence"):
        load_labeled_sentences(save(tmp_path / "a.txt", "\n \n"))
    with raises_usage(found="has no column 'text'"):
        load_labeled_sentences(save(tmp_path / "a.csv", "a,b\n1,2\n"))


def test_repeated_sentences_keep_their_first_row():
    sentences = Sentences(["a", "b", "a"], ["1", "2", "3"])
    assert sentences.distinct() == [0, 1] and sentences.take([0, 1]) == Sentences(["a", "b"], ["1", "2"])
