"""Files of embeddings: other files are kept, damage is found, and unfinished work is continued or begun again."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from informin import outputs
from informin.models import embed_file, embedding_files
from informin.models.embed_file import embed_cached
from informin.models.embedding_files import Progress
from tests.conftest import raises_usage
from tests.demo.helpers import TableEncoder

TABLE = {"a": [1.0, 0.0], "b": [0.0, 2.0], "c": [3.0, 1.0], "": [1.0, 1.0]}
TEXTS = ["a", "b", "c", "a", "b"]
EXPECTED = np.array([TABLE[text] for text in TEXTS], np.float32)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(embed_file, "CHUNK", 2)


def embed(folder: Path, encoder: TableEncoder | None = None, texts: list[str] = TEXTS) -> np.ndarray:
    return np.array(embed_file.embed_file(encoder or TableEncoder("x", TABLE), texts, folder / "texts.npy"))


def begin(folder: Path, chunks: int = 1) -> Path:
    """Embed some chunks, fail, and return the folder of the unfinished file."""

    class Failing(TableEncoder):
        def __call__(self, sentences, progress=None):
            if len(self.embedded) >= 2 * chunks:
                raise ZeroDivisionError
            return super().__call__(sentences, progress)

    with pytest.raises(ZeroDivisionError):
        embed(folder, Failing("x", TABLE))
    return folder / ".texts.npy.embedding"


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_files_with_similar_names_are_kept(tmp_path, kind):
    """Records and unfinished files had these names in earlier versions."""
    others = ["texts.json", "texts.partial.npy", "texts.progress", "texts.npy.partial", "0"]
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "0").write_text("mine")
    for name in others:
        if kind == "folder":
            (tmp_path / name).mkdir()
            (tmp_path / name / "0").write_text("mine")
        elif kind == "link":
            (tmp_path / name).symlink_to("theirs")
        else:
            (tmp_path / name).write_text("mine")
    assert np.array_equal(embed(tmp_path), EXPECTED)
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == sorted([*others, "theirs", "texts.npy", "texts.npy.json"])
    for name in others:
        path = tmp_path / name
        assert (path if path.is_file() else path / "0").read_text() == "mine", name


@pytest.mark.parametrize("name", ["texts.npy", "texts.npy.json"])
@pytest.mark.parametrize("kind", ["file", "folder", "link to nothing", "link to a file"])
def test_other_files_are_not_replaced(tmp_path, name, kind):
    path = tmp_path / name
    if kind == "folder":
        path.mkdir()
    elif kind == "link to nothing":
        path.symlink_to("nowhere")
    elif kind == "link to a file":
        (tmp_path / "own").write_text('{"mine": 1}')
        path.symlink_to("own")
    else:
        path.write_text('{"mine": 1}')
    before = sorted(path.name for path in tmp_path.iterdir())
    with raises_usage(found="texts.npy"):
        embed(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert kind in ("folder", "link to nothing") or path.read_text() == '{"mine": 1}'


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def write_nan(path: Path) -> None:
    array = np.load(path)
    array[3, 1] = np.nan
    np.save(path, array)


def garble(path: Path) -> None:
    path.write_bytes(b"\0" * 300)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def other_shape(path: Path) -> None:
    np.save(path, np.ones((5, 3), np.float32))


def other_type(path: Path) -> None:
    np.save(path, EXPECTED.astype(np.float16))


DAMAGES = [truncate, write_nan, garble, empty, other_shape, other_type]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_not_finished(tmp_path, damage):
    embed(tmp_path)
    damage(tmp_path / "texts.npy")
    with raises_usage(found="texts.npy is damaged: its checksum is not the one in texts.npy.json", fix="Delete it"):
        embed(tmp_path)
    (tmp_path / "texts.npy").unlink()
    assert np.array_equal(embed(tmp_path), EXPECTED), "an old record is replaced"


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", [".npy", ".npy.json"])
def test_a_damaged_file_in_the_cache_is_embedded_again(tmp_path, caplog, damage, file):
    encoder = TableEncoder("x", TABLE)
    embed_cached(encoder, TEXTS, tmp_path)
    (path,) = tmp_path.glob("*.npy")
    if file == ".npy":
        damage(path)
    elif damage in (truncate, garble, empty):
        damage(path.with_name(f"{path.name}.json"))
    else:
        path.with_name(f"{path.name}.json").write_text('{"kind": 1}')
    assert np.array_equal(embed_cached(encoder, TEXTS, tmp_path), EXPECTED)
    assert len(encoder.embedded) == 10 and "is damaged. It is embedded again." in caplog.text


@pytest.mark.parametrize("missing", range(3))
def test_finished_chunks_are_kept_if_their_rows_are(tmp_path, missing):
    folder = begin(tmp_path, chunks=2)
    assert sorted(path.name for path in folder.iterdir()) == ["0", "2", "description.json", "rows.npy"]
    rows = np.lib.format.open_memmap(folder / "rows.npy", "r+")
    rows[: 2 * missing] = np.nan  # as after a power failure
    rows.flush()
    encoder = TableEncoder("x", TABLE)
    assert np.array_equal(embed(tmp_path, encoder), EXPECTED) and len(encoder.embedded) == 1 + 2 * missing
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.npy", "texts.npy.json"]


@pytest.mark.parametrize("damage", [*DAMAGES, Path.unlink])
@pytest.mark.parametrize("file", ["rows.npy", "description.json", "0"])
def test_a_damaged_unfinished_file(tmp_path, caplog, damage, file):
    folder = begin(tmp_path)
    if file == "rows.npy" or damage not in (write_nan, other_shape, other_type):
        damage(folder / file)
    else:
        (folder / file).write_text('{"rows": [1, "é"]}', "utf-8")
    encoder = TableEncoder("x", TABLE)
    assert np.array_equal(embed(tmp_path, encoder), EXPECTED) and len(encoder.embedded) in (3, 5)
    if file == "description.json":
        assert "All texts are embedded again." in caplog.text and len(encoder.embedded) == 5


def test_an_unfinished_file_of_other_texts_is_begun_again(tmp_path, caplog, monkeypatch):
    begin(tmp_path)
    assert np.array_equal(embed(tmp_path, texts=TEXTS[1:]), EXPECTED[1:])
    assert "are of other texts or another model. All texts are embedded again." in caplog.text
    (tmp_path / "texts.npy").unlink()
    begin(tmp_path, chunks=2)
    monkeypatch.setattr(embed_file, "CHUNK", 4)  # in another version
    assert np.array_equal(embed(tmp_path), EXPECTED)


@pytest.mark.parametrize("name", ["notes.txt", "0", "rows.npy", "5"])
@pytest.mark.parametrize("kind", ["folder", "link", "the folder itself", "no folder"])
def test_files_in_the_folder_of_an_unfinished_file_are_kept(tmp_path, name, kind):
    folder, theirs = tmp_path / ".texts.npy.embedding", tmp_path / "theirs"
    theirs.mkdir()
    (theirs / name).write_text("mine")
    if kind == "no folder":
        folder.write_text("mine")
    elif kind == "the folder itself":
        folder.symlink_to("theirs")
    else:
        folder.mkdir()
        (folder / name).mkdir() if kind == "folder" else (folder / name).symlink_to("../theirs")
    with raises_usage(found=".texts.npy.embedding ", fix="Move or delete it."):
        embed(tmp_path)
    assert (theirs / name).read_text() == "mine" and not (tmp_path / "texts.npy").exists()
    assert os.path.lexists(folder) and (kind in ("no folder", "the folder itself") or os.path.lexists(folder / name))


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("place", ["allocate", "mkdir", "write_json", "save", "finish"])
def test_full_disk(tmp_path, monkeypatch, place):
    owner = {"allocate": embedding_files, "write_json": embedding_files, "mkdir": Path}.get(place, Progress)
    target = tmp_path / "new"
    if place == "mkdir":
        target.mkdir()
    fix = "Choose a writable folder" if place == "mkdir" else "Run the same command again"
    with monkeypatch.context() as patched, raises_usage(found="texts.npy cannot be written: [Errno 28]", fix=fix):
        patched.setattr(owner, place, full)
        embed(target)
    kept = place in ("save", "finish")
    assert target.exists() == (kept or place == "mkdir")
    assert not kept or ".texts.npy.embedding" in os.listdir(target)
    target.mkdir(exist_ok=True)
    assert np.array_equal(embed(target), EXPECTED)
    assert sorted(os.listdir(target)) == ["texts.npy", "texts.npy.json"]


def test_a_second_run_is_refused(tmp_path):
    """Also one with another model, whose rows would be mixed in."""

    class Other(TableEncoder):
        def __call__(self, sentences, progress=None):
            with raises_usage(found="texts.npy is in use by another run (process "):
                embed(tmp_path, TableEncoder("y", TABLE))
            return super().__call__(sentences, progress)

    assert np.array_equal(embed(tmp_path, Other("x", TABLE)), EXPECTED)


def test_the_record(tmp_path):
    embed(tmp_path)
    record = json.loads((tmp_path / "texts.npy.json").read_text())
    assert record.pop("sha256") == embed_file.sha256(tmp_path / "texts.npy") and record["rows"] == 5
    assert list(record) == ["kind", "texts", "encoder", "rows", "dimensions"] and outputs.WRITABLE
