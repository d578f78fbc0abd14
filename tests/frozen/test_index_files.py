"""The files of an index: saving, loading, damage, crashes, and other processes."""

import copy
import json
import pickle
import shutil
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import informin
from informin.cli import run_command
from informin.errors import SaveError, UsageError
from informin.files import PREFIX
from informin.frozen import bm25 as words_module
from informin.frozen import index_files as files_module
from informin.frozen.index import Index
from informin.frozen.index_files import DATA, RECORD, sample_checksum
from tests.conftest import raises_usage
from tests.frozen.test_index import QUERIES, rows_of


def fail(*_):
    raise OSError("no space left")


def data_of(folder: Path) -> Path:
    (data,) = folder.glob(f"{DATA}*")
    return data


def change_record(folder: Path, **changes) -> None:
    values = json.loads((folder / RECORD).read_text())
    (folder / RECORD).write_text(json.dumps(values | changes))


def test_saved(built, tmp_path):
    built.save(tmp_path / "index")
    loaded = informin.Index.load(tmp_path / "index")
    assert loaded.search(QUERIES) == built.search(QUERIES)
    assert isinstance(loaded.vectors, np.memmap) and loaded.vectors.dtype == np.float16
    assert loaded.record.model == built.record.model and len(loaded) == 150


@pytest.mark.parametrize("failing", ["write_json", "np.save"])
def test_crash_while_saving_leaves_the_old_index(built, tmp_path, monkeypatch, failing):
    built.save(tmp_path)
    index = Index.load(tmp_path)
    index.remove(list(range(100)))
    with monkeypatch.context() as patch:
        target = files_module if failing == "write_json" else np
        patch.setattr(target, failing.rpartition(".")[2], fail)
        with pytest.raises(SaveError):
            index.save(tmp_path)
    assert len(list(tmp_path.glob(f"{DATA}*"))) == 1, "the disk may be full"
    assert Index.load(tmp_path).search(QUERIES) == built.search(QUERIES)
    index.save(tmp_path)
    assert len(Index.load(tmp_path)) == 50
    assert len(list(tmp_path.glob(f"{DATA}*"))) == 1


def test_first_save_can_be_repeated_after_a_crash(built, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(files_module, "write_json", fail)
        with pytest.raises(SaveError):
            built.save(tmp_path / "index")
    assert not list((tmp_path / "index").glob(f"{DATA}*"))
    built.save(tmp_path / "index")
    assert len(Index.load(tmp_path / "index")) == 150


def test_folder_with_other_files_is_not_touched(built, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".unmounted").symlink_to(tmp_path / "nowhere")
    for folder in (tmp_path, tmp_path / "notes.txt", tmp_path / ".unmounted"):
        with raises_usage("output_dir"):
            built.save(folder)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["notes.txt"]


@pytest.mark.parametrize("content", ['{"pages": ["mine"]}', '["mine"]', "mine", ""])
def test_an_index_json_of_another_program_is_not_replaced(built, st_mean, tmp_path, content):
    (tmp_path / "texts.txt").write_text("a cat\na dog\n")
    site = tmp_path / "site"
    site.mkdir()
    (site / RECORD).write_text(content)
    words = ["index", f"--model_name={st_mean}", f"--train_file={tmp_path / 'texts.txt'}", f"--output_dir={site}"]
    assert run_command(*words) == run_command(*words, "--overwrite") == 2
    with raises_usage("output_dir"):
        built.save(site)
    assert [path.name for path in site.iterdir()] == [RECORD] and (site / RECORD).read_text() == content


def test_a_damaged_index_is_replaced(built, st_mean, texts, tmp_path):
    built.save(tmp_path)
    (tmp_path / RECORD).write_text((tmp_path / RECORD).read_text()[:50])
    Index.build(st_mean, texts).save(tmp_path)
    assert len(Index.load(tmp_path)) == 150 and len(list(tmp_path.glob(f"{DATA}*"))) == 1


@pytest.mark.parametrize("indexed", [False, True])
def test_other_data_with_such_a_name_stay(built, tmp_path, indexed):
    if indexed:
        built.save(tmp_path)
    (tmp_path / f"{DATA}training").mkdir()
    (tmp_path / f"{DATA}training" / "raw.txt").write_text("mine")
    (tmp_path / f"{DATA}raw.csv").write_text("mine")
    with nullcontext() if indexed else raises_usage("output_dir"):
        built.save(tmp_path)
    assert (tmp_path / f"{DATA}training" / "raw.txt").read_text() == (tmp_path / f"{DATA}raw.csv").read_text() == "mine"


def test_data_that_a_killed_process_left_are_removed(built, tmp_path):
    left = tmp_path / f"{PREFIX}{DATA}abc"
    left.mkdir()
    (left / "texts.jsonl").write_text("removed")
    built.save(tmp_path)
    assert not left.exists() and len(Index.load(tmp_path)) == 150


def test_data_that_were_removed_in_part_are_removed(built, tmp_path, monkeypatch):
    """A process that is killed while it deletes old files leaves the vectors and tokens of texts that were removed."""

    def killed(folder):
        (folder / "texts.jsonl").unlink()
        raise KeyboardInterrupt

    built.save(tmp_path)
    index = Index.load(tmp_path)
    index.remove([3])
    with monkeypatch.context() as patch:
        patch.setattr(files_module, "shutil", SimpleNamespace(rmtree=killed))
        with pytest.raises(KeyboardInterrupt):
            index.save(tmp_path)
    index = Index.load(tmp_path)
    index.save(tmp_path)
    assert len(index) == 149
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1


def test_an_index_is_saved_again_after_old_data_could_not_be_removed(built, st_mean, tmp_path, monkeypatch):
    """Such as after Ctrl-C during the removal: the new index is in place, and nobody else has changed it."""
    built.save(tmp_path)
    index = Index.load(tmp_path, st_mean)
    index.remove([3])
    with monkeypatch.context() as patch:
        patch.setattr(files_module, "shutil", SimpleNamespace(rmtree=fail))
        with pytest.raises(SaveError):
            index.save(tmp_path)
    assert len(Index.load(tmp_path, st_mean)) == 149
    index.remove([4])
    index.save(tmp_path)
    assert len(Index.load(tmp_path, st_mean)) == 148
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1


def test_changes_of_another_process_are_not_undone(built, tmp_path):
    built.save(tmp_path / "index")
    here = Index.load(tmp_path / "index")
    there = Index.load(tmp_path / "index")
    there.remove([3])
    there.save(tmp_path / "index")
    (tmp_path / "link").symlink_to("index")
    here.add(["a dog"])
    for folder in ("index", "link"):
        with raises_usage("output_dir"):
            here.save(tmp_path / folder)
    assert len(Index.load(tmp_path / "index")) == 149
    there.save(tmp_path / "index")
    here.save(tmp_path / "new")
    assert len(Index.load(tmp_path / "new")) == 151


def test_no_index(tmp_path):
    with raises_usage("index"):
        Index.load(tmp_path)


def remove_line(data: Path) -> None:
    lines = (data / "texts.jsonl").read_text().splitlines(keepends=True)
    (data / "texts.jsonl").write_text("".join(lines[:40] + lines[41:]))


def swap_lines(data: Path) -> None:
    lines = (data / "texts.jsonl").read_text().splitlines(keepends=True)
    (data / "texts.jsonl").write_text("".join([lines[1], lines[0], *lines[2:]]))


def cut_vectors(data: Path) -> None:
    content = (data / "vectors.npy").read_bytes()
    (data / "vectors.npy").write_bytes(content[: len(content) // 2])


def remove_rows(data: Path) -> None:
    (data / "rows.npy").unlink()


def cut_words(data: Path) -> None:
    path = next((data / "words").glob("*.json"))
    path.write_bytes(path.read_bytes()[:-5])


def other_vectors(data: Path) -> None:
    """As many vectors of another model."""
    vectors = np.load(data / "vectors.npy")
    np.save(data / "vectors.npy", vectors[:, ::-1])


def other_rows(data: Path) -> None:
    np.save(data / "rows.npy", np.load(data / "rows.npy") + 1)


def other_words(data: Path) -> None:
    path = next((data / "words").glob("indices*"))
    np.save(path, np.load(path)[::-1])


HARMS = [remove_line, swap_lines, cut_vectors, remove_rows, cut_words, shutil.rmtree]


@pytest.mark.parametrize("harm", [*HARMS, other_vectors, other_rows, other_words])
def test_a_damaged_index_is_not_searched(built, tmp_path, capsys, harm):
    built.save(tmp_path)
    harm(data_of(tmp_path))
    with raises_usage("index"):
        Index.load(tmp_path)
    assert run_command("search", *["dog", "--index", str(tmp_path)]) == 2
    assert "damaged" in capsys.readouterr().err


def test_a_model_without_pooling_is_not_that_of_the_index(built, bert, tmp_path):
    """No option of a search sets one."""
    built.save(tmp_path)
    with raises_usage("model_name"):
        Index.load(tmp_path, bert)


@pytest.mark.parametrize("queries", ["model", "static"])
def test_a_cross_encoder_has_no_embeddings(st_mean, texts, tmp_path, queries):
    """sentence-transformers would convert it with a pooling of its choice."""
    folder = shutil.copytree(st_mean, tmp_path / "cross")
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "CrossEncoder"}))
    with raises_usage("model_name"):
        Index.build(folder, texts, queries=queries)


@pytest.mark.parametrize("harm", [remove_line, cut_vectors, remove_rows])
def test_files_of_an_older_version_are_counted(built, tmp_path, harm):
    """It recorded neither sizes nor checksums."""
    built.save(tmp_path)
    change_record(tmp_path, sizes={}, samples={}, texts_sha256="")
    assert len(Index.load(tmp_path)) == 150
    harm(data_of(tmp_path))
    with raises_usage("index"):
        Index.load(tmp_path)


def test_a_sample_covers_a_small_file_and_the_ends_of_a_large_one(tmp_path):
    path = tmp_path / "file"
    for size, changed in ((1, range(1)), (5_000, range(5_000)), (2**20, range(0, 2**20, 997)), (2**22, [0, 2**22 - 1])):
        content = bytearray(size)
        path.write_bytes(content)
        before = sample_checksum(path)
        for place in list(changed)[:: max(1, len(changed) // 50)]:
            content[place] = 1
            path.write_bytes(content)
            assert sample_checksum(path) != before
            content[place] = 0


def test_an_index_of_another_version(built, tmp_path):
    built.save(tmp_path)
    change_record(tmp_path, invented=1)
    with pytest.raises(UsageError, match="invented"):
        Index.load(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [{"data": 5}, {"word_weight": "0.5"}, {"loading": None}, {"sizes": []}, {"document_prompt": 5}, {"scores": [1]}],
)
def test_values_of_another_type(built, tmp_path, changes):
    built.save(tmp_path)
    change_record(tmp_path, **changes)
    with raises_usage(found=f"{tmp_path / RECORD}"):
        Index.load(tmp_path)


def test_a_load_while_another_process_saves_gives_the_old_index_or_the_new_one(built, tmp_path, monkeypatch):
    """Between index.json and the data, the other process replaces both."""
    built.save(tmp_path)
    other = Index.load(tmp_path)
    other.remove(list(range(50)))
    read = files_module._read_data
    numbers = iter([1])

    def late(record, data):
        if next(numbers, None):
            other.save(tmp_path)
        return read(record, data)

    monkeypatch.setattr(files_module, "_read_data", late)
    assert len(Index.load(tmp_path)) == 100


def test_a_load_while_files_of_the_old_index_disappear(built, st_mean, texts, tmp_path, monkeypatch):
    """Files that are opened last are gone: those of static queries, which an index need not have."""
    index = Index.build(st_mean, texts, queries="static", query_prompt="the dog ")
    index.save(tmp_path)
    other = Index.load(tmp_path)
    load = files_module.StaticQueries.load
    numbers = iter([1])

    def late(data):
        if next(numbers, None):
            other.save(tmp_path / "new")
            (data / "as_queries.npy").unlink()
            shutil.copytree(data_of(tmp_path / "new"), tmp_path / data_of(tmp_path / "new").name)
            shutil.copy(tmp_path / "new" / RECORD, tmp_path / RECORD)
        return load(data)

    monkeypatch.setattr(files_module.StaticQueries, "load", late)
    assert Index.load(tmp_path).static_queries.as_queries is not None


def test_a_folder_is_read_while_it_is_written(built, st_mean, tmp_path):
    built.save(tmp_path)
    stop, model = threading.Event(), informin.load_model(st_mean)

    def write():
        while not stop.is_set():
            built.save(tmp_path)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert {len(Index.load(tmp_path, model)) for _ in range(12)} == {150}
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize("part", ["PyStemmer", "bm25s", "regex", "unicode", "rules"])
def test_words_of_other_versions_are_built_again(built, tmp_path, monkeypatch, part):
    built.save(tmp_path)
    change_record(tmp_path, words=words_module.versions() | {part: "0"})
    monkeypatch.setattr(files_module.BM25, "load", fail)
    index = Index.load(tmp_path)
    assert index.search(QUERIES) == built.search(QUERIES)
    monkeypatch.undo()
    index.save(tmp_path)
    assert json.loads((tmp_path / RECORD).read_text())["words"] == words_module.versions()


def test_versions_are_those_of_this_environment(monkeypatch):
    before = words_module.versions()
    monkeypatch.setattr(words_module, "version", lambda name: "0")
    assert words_module.versions() != before


def test_index_of_the_last_release_is_read(bert, texts, tmp_path):
    """It has no versions, sizes and checksum, and its texts are lines of JSON strings."""
    Index.build(bert, texts, pooler="last", device="cpu").save(tmp_path)
    values = json.loads((tmp_path / RECORD).read_text())
    for name in ("words", "sizes", "samples", "texts_sha256"):
        del values[name]
    (tmp_path / RECORD).write_text(json.dumps(values))
    assert json.loads((data_of(tmp_path) / "texts.jsonl").read_text().splitlines()[0]) == texts[0]
    assert rows_of(Index.load(tmp_path)) == rows_of(Index.build(bert, texts, pooler="last"))


def test_files_of_the_operating_system_are_no_output(built, tmp_path):
    (tmp_path / ".DS_Store").touch()
    built.save(tmp_path)
    assert len(Index.load(tmp_path)) == 150 and (tmp_path / ".DS_Store").exists()
    (tmp_path / RECORD).unlink()
    (tmp_path / "a.txt").touch()
    with raises_usage("output_dir", found="contains a.txt"):
        built.save(tmp_path)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda index: pickle.loads(pickle.dumps(index))])
@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("options", [{}, {"queries": "static", "rerank": True}, {"smooth": True}])
def test_copies_of_an_index(st_mean, texts, tmp_path, copied, loaded, options):
    index = Index.build(st_mean, texts[:40], **options)
    if loaded:
        index.save(tmp_path / "index")
        index = Index.load(tmp_path / "index", st_mean)
    found = index.search(QUERIES)
    copy_of = copied(index)
    shutil.rmtree(tmp_path / "index", ignore_errors=True)
    assert copy_of.search(QUERIES) == found
    copy_of.remove(found[0][0].row)
    copy_of.add(["a new text"])
    assert copy_of.texts[-1] == "a new text" and index.search(QUERIES) == found


def test_a_copy_that_was_saved_is_not_overwritten(st_mean, texts, tmp_path):
    index = Index.build(st_mean, texts[:9])
    index.save(tmp_path / "index")
    copy_of = copy.copy(index)
    copy_of.add(["a new text"])
    copy_of.save(tmp_path / "index")
    with raises_usage("output_dir", found="has changed"):
        index.save(tmp_path / "index")
    assert "a new text" in Index.load(tmp_path / "index", st_mean).texts
