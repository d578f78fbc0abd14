"""Outputs appear when they are complete, have one writer at a time, and never replace files of others."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import SafetensorError

from informin.errors import SaveError
from informin.files import PREFIX, contents, new_file, new_files, new_folder, only_writer, raise_if_used, save_text
from tests.conftest import ROOT, raises_usage


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def has_file(name: str) -> Callable[[Path], bool]:
    return lambda folder: (folder / name).is_file()


@pytest.mark.parametrize("before", ["missing", "empty", "link", "nested", "current"])
def test_a_folder_appears_when_it_is_complete(tmp_path, monkeypatch, before):
    """An existing folder stays the same one, because it can be mounted."""
    target = (tmp_path / "a" / "b" if before == "nested" else tmp_path) / "out"
    if before in ("empty", "current"):
        target.mkdir()
    if before == "link":
        (tmp_path / "real").mkdir()
        target.symlink_to("real")
    if before == "current":
        monkeypatch.chdir(target)
    inode = target.stat().st_ino if target.exists() else None
    with only_writer(target), new_folder("." if before == "current" else target) as new:
        (new / "file").write_text("x")
        (new / "sub").mkdir()
        assert not (target / "file").exists()
    assert names(target) == ["file", "sub"] and target.is_symlink() == (before == "link")
    assert [path for path in names(tmp_path) if PREFIX in path] == []
    assert inode is None or target.stat().st_ino == inode


@pytest.mark.parametrize(
    "error, raised",
    [
        (OSError(28, "No space left on device"), SaveError),
        (SafetensorError("No space left on device"), SaveError),
        (Exception("No space left on device (os error 28)"), SaveError),  # of tokenizers
        (Exception("another one"), Exception),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (ZeroDivisionError(), ZeroDivisionError),
    ],
)
@pytest.mark.parametrize("before", ["missing", "empty"])
def test_after_an_error_no_folder_is_left(tmp_path, error, raised, before):
    if before == "empty":
        (tmp_path / "out").mkdir()
    with pytest.raises(raised), new_folder(tmp_path / "out") as new:
        (new / "file").write_text("x")
        raise error
    assert names(tmp_path) == (["out"] if before == "empty" else [])


def test_the_error_names_the_output_and_not_a_temporary_folder(tmp_path):
    with pytest.raises(SaveError) as info, new_folder(tmp_path / "out") as outer, new_folder(outer):
        raise SafetensorError("No space left on device")
    assert str(info.value).startswith(f"{tmp_path / 'out'} could not")


def test_checkpoints_are_never_replaced(tmp_path):
    """The output folder of a training run holds a model, as an export does."""
    (tmp_path / "run" / "checkpoint-9").mkdir(parents=True)
    (tmp_path / "run" / "modules.json").touch()
    for replaces in (has_file("modules.json"), None):  # no advice to set `overwrite` either
        with raises_usage("output_dir", fix="checkpoints"), new_folder(tmp_path / "run", "output_dir", replaces):
            pytest.fail("the folder is replaced")
    assert names(tmp_path) == ["run", "run/checkpoint-9", "run/modules.json"]


@pytest.mark.parametrize("name", [".DS_Store", "lost+found", "desktop.ini", "Thumbs.db", "._m.txt", "Desktop.ini"])
def test_files_of_the_operating_system_do_not_make_a_folder_used(tmp_path, name):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / name).touch()
    raise_if_used(folder)
    with new_folder(folder) as new:
        (new / "fit.json").touch()
    with new_folder(folder, replaces=has_file("fit.json")) as new:
        (new / "fit.json").touch()
    assert set(names(tmp_path)) == {"out", f"out/{name}", "out/fit.json"}
    (folder / "fit.json").rename(folder / "notes.txt")
    with raises_usage(found="contains notes.txt"):
        raise_if_used(folder)


def test_ctrl_c_while_an_old_output_is_deleted_leaves_the_new_one(tmp_path, monkeypatch):
    for name in ("a.json", "b/old", "fit.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("old")
    delete = shutil.rmtree

    def interrupted(path, *args, **how):
        monkeypatch.setattr(shutil, "rmtree", delete)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path, replaces=has_file("fit.json")) as new:
        for name in ("a.json", "fit.json"):
            (new / name).write_text("new")
        monkeypatch.setattr(shutil, "rmtree", interrupted)
    assert {path.name: path.read_text() for path in contents(tmp_path)} == {"a.json": "new", "fit.json": "new"}


def test_an_old_output_that_cannot_be_replaced_stays(tmp_path, monkeypatch):
    """A user may not move a folder of root, such as one that a container wrote."""
    for name in ("a.json", "fit.json", "onnx"):
        (tmp_path / name).write_text("old")
    replace = os.replace

    def refused(path, place):
        if Path(path).name == "onnx":
            raise PermissionError(13, "Permission denied", str(path))
        replace(path, place)

    monkeypatch.setattr(os, "replace", refused)
    with pytest.raises(SaveError), new_folder(tmp_path, replaces=has_file("fit.json")) as new:
        (new / "fit.json").write_text("new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        ["a.json", "fit.json", "onnx"], "old"
    )


def test_used_folders(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "full" / "x").mkdir(parents=True)
    (tmp_path / "nowhere").symlink_to("gone")
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / ".notes").touch()
    for name in ("file", "full", "nowhere", "hidden"):
        with raises_usage("output_dir", found=f"{name} is in use"):
            raise_if_used(tmp_path / name, "output_dir")
        with raises_usage("output_dir"), new_folder(tmp_path / name, "output_dir"):
            pytest.fail("the folder is new")
    with pytest.raises(SaveError), new_folder(tmp_path / "out") as new:
        (new / "ours").touch()
        (tmp_path / "out" / "theirs").mkdir(parents=True)  # another program was faster
        (tmp_path / "out" / "ours").mkdir()
    assert names(tmp_path / "out") == ["ours", "theirs"]


def start(code: str, folder: Path) -> subprocess.Popen:
    """Start a program, and wait for its first line."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from informin.files import *\n{code}"
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process = subprocess.Popen([sys.executable, "-c", code], cwd=folder, **pipes)
    assert process.stdout.readline() == "ready\n"
    return process


# Both wait until their input ends.
HOLD = "with only_writer('x.npy'):\n print('ready', flush=True); sys.stdin.read()"
FILL = "with new_folder('out') as new:\n (new / 'a').touch(); print('ready', flush=True); sys.stdin.read()"


def test_one_process_writes_at_a_time(tmp_path):
    (tmp_path / "link").symlink_to("x.npy")
    process = start(HOLD, tmp_path)
    try:
        for name in ("x.npy", "link"):
            with raises_usage("output", found=f"{name} is being written"), only_writer(tmp_path / name, "output"):
                pytest.fail("two writers")
        with only_writer(tmp_path / "y.npy"):
            pass
    finally:
        process.kill()
        process.communicate()
    with only_writer(tmp_path / "x.npy"), only_writer(tmp_path / "x.npy"):  # the system released the lock
        pass
    assert names(tmp_path) == ["link"]


def test_the_next_program_removes_what_a_killed_one_left(tmp_path):
    process = start(FILL, tmp_path)
    with raises_usage(found="is being written"), new_folder(tmp_path / "out"):
        pytest.fail("two writers")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert names(tmp_path) and not (tmp_path / "out").exists()
    with new_folder(tmp_path / "out") as new:
        (new / "b").touch()
    assert names(tmp_path) == ["out", "out/b"]


def test_the_next_export_removes_what_a_killed_one_left(tmp_path):
    """It may be a whole model, in an output folder that has other files."""
    process = start(FILL.replace("new_folder", "new_files"), tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(names(tmp_path)) == 3
    with new_files(tmp_path / "out") as new:
        (new / "b").touch()
    assert names(tmp_path) == ["out", "out/b"]


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "x.npy", tmp_path / f"{'x' * 250}.npy"):
        with raises_usage("output"), only_writer(path, "output"):
            pytest.fail("it is writable")
    assert names(tmp_path) == ["file"]


def test_a_writable_folder_in_a_read_only_one(tmp_path, monkeypatch):
    """As a folder that is mounted into a container."""
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with only_writer(out):
        assert names(tmp_path) == ["out", f"out/{PREFIX}out.lock"]
        with new_folder(out) as new:
            (new / "a").touch()
    assert names(tmp_path) == ["out", "out/a"]


def test_new_files_replace_those_of_the_same_name(tmp_path):
    """At the end of the block, in folders too; not after an error."""
    out = tmp_path / "out"
    for text in ("old", "new"):
        with new_files(out) as new:
            (new / "deep").mkdir()
            (new / "a").write_text(text)
            (new / "deep" / "b").write_text(text)
            assert text == "old" or (out / "a").read_text() == "old"
        (out / "mine").touch()
    with pytest.raises(ZeroDivisionError), new_files(out) as new:
        (new / "a").write_text("unfinished")
        raise ZeroDivisionError
    assert names(tmp_path) == ["out", "out/a", "out/deep", "out/deep/b", "out/mine"]
    assert [(out / name).read_text() for name in ("a", "deep/b")] == ["new", "new"]


def test_a_file_is_replaced_when_it_is_complete(tmp_path):
    path = tmp_path / "deep" / "x.txt"
    save_text(path, "old é")
    with new_file(path) as partial:
        partial.write_text("new")
        assert path.read_text(encoding="utf-8") == "old é" and partial.name == path.name
    with pytest.raises(ZeroDivisionError), new_file(path) as partial:
        partial.write_text("unfinished")
        raise ZeroDivisionError
    assert path.read_text() == "new" and names(tmp_path) == ["deep", "deep/x.txt"]


def test_files_and_folders_have_the_usual_modes(tmp_path):
    """Temporary files are private, but outputs are read by others."""
    before = os.umask(0o022)
    try:
        save_text(tmp_path / "x", "")
        with new_folder(tmp_path / "out"):
            pass
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("x", "out")] == [0o644, 0o755]
