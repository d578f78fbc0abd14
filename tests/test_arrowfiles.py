"""Arrow files, folders of datasets' save_to_disk, formats that are not read, and the files in a folder."""

import json
import shutil

import datasets
import pyarrow as pa
import pyarrow.feather
import pytest

from informin.inputfiles import find_files
from informin.otherformats import FORMATS
from informin.textfiles import read_sentences, require_file
from tests.conftest import raises_usage

TEXTS = ["red", "blue", None, "old"]


@pytest.fixture
def saved(tmp_path):
    """Return a function that saves a Dataset, or a DatasetDict with these splits."""

    def save(*splits: str, **options):
        table = datasets.Dataset.from_dict({"n": range(4), "text": TEXTS})
        data = datasets.DatasetDict(dict.fromkeys(splits, table)) if splits else table
        data.save_to_disk(str(tmp_path / "d"), **options)
        return tmp_path / "d"

    return save


def texts_in(*paths) -> list[str]:
    return [text for file in find_files([str(path) for path in paths]) for text in read_sentences(file, None)]


@pytest.mark.parametrize("options", [{}, {"num_shards": 3}])
def test_saved_data_set_is_read(saved, options):
    folder = saved(**options)
    datasets.load_from_disk(str(folder)).map(lambda row: {"text": "x"})  # leaves a cache file in the folder
    assert texts_in(folder) == texts_in(folder.parent) == ["red", "blue", "", "old"]


def test_dictionary_of_one_split_is_read_and_of_several_rejected(saved):
    assert texts_in(saved("train")) == ["red", "blue", "", "old"]
    folder = saved("train", "test")
    with raises_usage(
        option="train_file",
        found="a DatasetDict of datasets' save_to_disk with the splits train, test",
        needed="one split",
        fix=f"Give {folder / 'train'}.",
    ):
        texts_in(folder)
    assert texts_in(folder / "test") == ["red", "blue", "", "old"]


@pytest.mark.parametrize("names", [["../x.arrow"], ["/etc/passwd"], [None], 5])
def test_state_that_names_other_files_is_rejected(saved, names):
    folder = saved()
    listed = [{"filename": name} for name in names] if isinstance(names, list) else names
    (folder / "state.json").write_text(json.dumps({"_data_files": listed}))
    with raises_usage(found="state.json is not one that", fix="datasets.load_from_disk"):
        texts_in(folder)


@pytest.mark.parametrize("cut", [0, 3, 100, -20])
def test_damaged_arrow_file_is_rejected(saved, cut):
    (path,) = find_files([str(saved())])
    path.write_bytes(path.read_bytes()[:cut])
    with raises_usage(found=f"{path} is not a readable Arrow file (", fix="the file again"):
        texts_in(path)


def test_arrow_file_with_an_index_is_read(tmp_path):
    table = pa.table({"n": [1, 2], "text": pa.array(["one", "two"]).dictionary_encode()})
    pyarrow.feather.write_feather(table, tmp_path / "a.arrow")
    assert texts_in(tmp_path / "a.arrow") == ["one", "two"]


def test_saved_folder_in_place_of_a_file_is_named(saved):
    with raises_usage(found="is a folder", needed="a file", fix="save_to_disk: give an .arrow file"):
        require_file("`replay_file`", saved())


HIDDEN = [".ipynb_checkpoints/a-checkpoint.csv", "._a.csv", "__MACOSX/a.csv", "__MACOSX/._a.csv", "~$a.csv",
          ".git/a.txt", ".DS_Store", "inside/.cache/a.jsonl", "inside/._b.txt"]  # fmt: skip


def test_hidden_files_in_a_folder_are_skipped(tmp_path):
    for name in ["a.csv", "inside/b.txt", *HIDDEN]:
        path = tmp_path / ".data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\0\xff" if "._" in name else b"text\n")
    found = [path.relative_to(tmp_path / ".data").as_posix() for path in find_files([str(tmp_path / ".data")])]
    assert found == ["a.csv", "inside/b.txt"]
    hidden = tmp_path / ".data" / ".git" / "a.txt"
    assert find_files([str(hidden)]) == find_files([str(hidden.parent)]) == [hidden]  # named by the user


def test_folder_of_hidden_files_alone_is_rejected(tmp_path):
    (tmp_path / ".a.txt").write_text("one\n")
    with raises_usage(option="train_file", found="has no training file"):
        find_files([str(tmp_path)])


def test_names_in_a_folder_that_are_not_utf8_are_rejected(tmp_path):
    (tmp_path / "na\udcefve.txt").write_text("one\n")
    with raises_usage(found="na\udcefve.txt in ", fix="Rename it"):
        find_files([str(tmp_path)])


@pytest.mark.parametrize("start, fix", [(start, one.fix) for one in FORMATS for start in one.starts])
@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl", "a"])
def test_other_formats_are_named_with_the_remedy(tmp_path, name, start, fix):
    path = tmp_path / name
    path.write_bytes(start + b"\xff\0")
    with raises_usage(found=f"{path} is ", needed="text", fix=fix):
        list(read_sentences(path, None))


@pytest.mark.parametrize(
    "name, start, found",
    [
        ("a.xlsx", b"PK\x03\x04", "a spreadsheet"),
        ("a.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a spreadsheet"),
        ("a.docx", b"PK\x03\x04", "a text document"),
        ("a.zip", b"PK\x03\x04", "a ZIP archive"),
        ("a.pkl", b"\x80\x04\0\n", "a pickle"),
    ],
)
def test_the_suffix_names_the_format_and_files_in_a_folder(tmp_path, caplog, name, start, found):
    path = tmp_path / "d" / name
    path.parent.mkdir()
    path.write_bytes(start)
    with raises_usage(found=f"{path} is {found}"):
        list(read_sentences(path, None))
    with raises_usage(option="train_file", found=f"which has no training file; it has {name} ({found}", fix="."):
        find_files([str(path.parent)])
    shutil.copy(path, path.parent / f"b{path.suffix}")
    (path.parent / "a.txt").write_text("one\n")
    assert texts_in(path.parent) == ["one"]
    assert f"{name} ({found}" in caplog.messages[0] and "and 1 other file of this kind" in caplog.messages[0]
