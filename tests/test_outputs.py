"""Outputs appear when they are complete, have one writer at a time, and never replace files of others."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from informin import outputs, program, summaries
from informin.cli import study
from informin.errors import UsageError
from informin.evaluation.result_tables import write_report
from informin.figures import drawing
from informin.outputs import new_files, new_folder, only_writer, refuse_unwritable, refuse_used, save_texts
from informin.report.page import GENERATED, PAGE, write_page
from informin.temporary import PREFIX
from tests.conftest import raises_usage

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.parametrize("before", ["missing", "empty", "link", "mounted", "nested"])
def test_a_folder_appears_when_it_is_complete(tmp_path, monkeypatch, before):
    place = tmp_path / "a" / "b" if before == "nested" else tmp_path
    target = place / "out"
    if before in ("empty", "mounted"):
        target.mkdir()
    if before == "link":
        (tmp_path / "real").mkdir()
        target.symlink_to("real")
    if before == "mounted":
        monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == target)
    inode = target.stat().st_ino if target.exists() else None
    with only_writer(target), new_folder(target) as new:
        (new / "file").write_text("x")
        (new / "sub").mkdir()
        inside = before == "mounted"
        assert not (target / "file").exists() and (target.exists() and any(target.iterdir())) == inside
    assert names(target) == ["file", "sub"] and target.is_symlink() == (before == "link")
    assert [path for path in names(tmp_path) if PREFIX in path or "lock" in path] == []
    assert not inside or target.stat().st_ino == inode


@pytest.mark.parametrize(
    "error, message",
    [
        (FULL, "out cannot be written: [Errno 28]"),
        (RuntimeError("No space left on device (os error 28)"), "out cannot be written: No space"),
        (RuntimeError("Read-only file system (os error 30)"), "out cannot be written: Read-only"),
        (UsageError("No space left on device, says another"), "No space left on device, says another"),
    ],
)
def test_after_an_error_nothing_is_left(tmp_path, error, message):
    with raises_usage(found=message), only_writer(tmp_path / "out"), new_folder(tmp_path / "out") as new:
        (new / "file").write_text("x")
        raise error
    assert names(tmp_path) == []
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "out"):
        raise ZeroDivisionError
    assert names(tmp_path) == []


def test_errors_of_inner_folders_name_the_output(tmp_path):
    """`fit` saves a model with `save_adapted`, into the folder that becomes its output."""
    with raises_usage(option="output_dir", found=f"{tmp_path / 'out'} cannot be written: [Errno 28]") as raised:
        with new_folder(tmp_path / "out") as new, new_folder(new, "output_dir"):
            raise FULL
    assert PREFIX not in str(raised.value) and names(tmp_path) == []


def test_used_folders(tmp_path):
    dead = f"{PREFIX}{outputs.remove_leftovers.__globals__['_machine']()}-1-5-x"  # a process that does not exist
    (tmp_path / "dead" / dead).mkdir(parents=True)
    refuse_used(tmp_path / "dead")
    assert names(tmp_path / "dead") == []
    (tmp_path / "file").touch()
    (tmp_path / "full" / "x").mkdir(parents=True)
    (tmp_path / "nowhere").symlink_to("gone")
    (tmp_path / "hidden" / f"{PREFIX}notes").mkdir(parents=True)
    for name in ("file", "full", "nowhere", "hidden"):
        with raises_usage(option="output_dir", found=f"{name} is in use"):
            refuse_used(tmp_path / name, "output_dir")
    with raises_usage(found="out cannot be written"), new_folder(tmp_path / "out") as new:
        (new / "ours").touch()
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").touch()  # another program was faster
    assert names(tmp_path / "out") == ["theirs"]


@pytest.mark.parametrize("kind", ["file", "link", "holder", "holder link"])
def test_files_with_the_name_of_a_lock_are_kept(tmp_path, kind):
    (tmp_path / "own").write_text("mine")
    lock = tmp_path / (".x.npy.lock" if "holder" not in kind else ".x.npy.lock-holder")
    lock.symlink_to("own") if "link" in kind else lock.write_text("mine")
    with raises_usage(option="output", found="x.npy cannot be written: "):
        refuse_unwritable(tmp_path / "x.npy", "output")
    assert lock.read_text() == (tmp_path / "own").read_text() == "mine" and lock.is_symlink() == ("link" in kind)


def test_one_writer_at_a_time(tmp_path):
    (tmp_path / "link").symlink_to("x.npy")
    with only_writer(tmp_path / "x.npy"):
        for name in ("x.npy", "link"):
            with raises_usage(option="output", found=f"{name} is in use by another run (process {os.getpid()} on "):
                refuse_unwritable(tmp_path / name, "output")
        refuse_unwritable(tmp_path / "y.npy")
    refuse_unwritable(tmp_path / "x.npy")
    assert names(tmp_path) == ["link"]


def test_unwritable_places(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "x.npy", Path("/proc/x/y.npy"), tmp_path / f"{'x' * 250}.npy"):
        with raises_usage(option="output", found="cannot be written: "):
            refuse_unwritable(path, "output")
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("code, expected", [(errno.ENOSPC, 2), (errno.EROFS, 2), (errno.ENOENT, None)])
def test_the_last_resort_of_every_command(capsys, code, expected):
    def fail():
        raise OSError(code, "what\nhappened", "f")

    if expected is None:
        with pytest.raises(OSError):
            program.exit_code(fail, [])
        return
    assert program.exit_code(fail, []) == expected
    said = capsys.readouterr().err
    assert said.startswith("error: a file cannot be written: [Errno ") and said.count("\n") == 1


def test_texts_appear_together(tmp_path, monkeypatch):
    with monkeypatch.context() as patched, raises_usage(found="out cannot be written: [Errno 28]"):
        write = Path.write_text
        patched.setattr(Path, "write_text", lambda path, *a, **k: fail() if path.name == "b" else write(path, *a, **k))
        save_texts(tmp_path / "out", {"a": "1", "b": "2"})
    assert names(tmp_path) == []
    for _ in range(2):
        save_texts(tmp_path / "out", {"a": "1", "b": "2"})
    assert names(tmp_path) == ["out", "out/a", "out/b"]


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


def fail():
    raise FULL


SUMMARY = {"shared": {}, "runs": []}


@pytest.mark.parametrize("name", ["summary.json", "table.md", *study.PLOTS])
def test_files_of_others_in_the_folder_of_a_study_are_kept(tmp_path, monkeypatch, name):
    monkeypatch.setattr(study, "save_study", lambda *_: pytest.fail("written"))
    (tmp_path / name).write_text("mine")
    with raises_usage(found=f"{name} exists, and this program did not write it"):
        study.show(None, {}, tmp_path)
    assert names(tmp_path) == [name]
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    summaries.refuse_foreign(tmp_path, study.PLOTS)


@pytest.mark.parametrize("foreign", ["summary.json", "table.md"])
@pytest.mark.parametrize("content", ["notes", '{"runs": 3}', "link"])
def test_summaries_and_tables_of_others_are_kept(tmp_path, foreign, content):
    path = tmp_path / foreign
    path.symlink_to("nowhere") if content == "link" else path.write_text(content)
    with raises_usage(found=f"{foreign} exists, and this program did not write it"):
        write_report(str(tmp_path), [], [], seeds=False)
    assert names(tmp_path) == [foreign] and (content == "link" or path.read_text() == content)
    path.unlink()
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    (tmp_path / "table.md").write_text("of the summary")
    summaries.refuse_foreign(tmp_path)


@pytest.mark.parametrize("mark", GENERATED)
def test_pages_of_others_are_kept(tmp_path, monkeypatch, mark):
    monkeypatch.setattr("informin.report.page.page", lambda folder: "new")
    for content in ("<html>mine</html>", f"{'x' * 2_000}{mark}"):
        (tmp_path / PAGE).write_text(content)
        with raises_usage(found=f"{PAGE} exists, and this program did not write it"):
            write_page(tmp_path)
        assert (tmp_path / PAGE).read_text() == content
    (tmp_path / PAGE).write_text(f"<html>{mark}")
    assert write_page(tmp_path).read_text() == "new"
    (tmp_path / PAGE).unlink()
    monkeypatch.setattr("informin.outputs.new_file", lambda path: fail())
    with raises_usage(found=f"{PAGE} cannot be written: [Errno 28]"):
        write_page(tmp_path)


@pytest.mark.parametrize("suffix", drawing.SUFFIXES)
def test_figures_of_others_are_kept(tmp_path, suffix):
    path = tmp_path / f"plot.{suffix}"
    path.write_bytes(b"mine")
    with raises_usage(option="output", found=f"plot.{suffix} exists"):
        drawing.save(Figure(), tmp_path / "plot", ["a", "b"], [])
    with raises_usage(option="output", found=f"plot.{suffix} exists"):
        drawing.refuse_foreign(tmp_path / "plot")  # before the work
    assert names(tmp_path) == [path.name] and path.read_bytes() == b"mine"
    path.unlink()
    drawing.save(Figure(), tmp_path / "plot", ["a", "b"], [])
    drawing.save(Figure(), tmp_path / "plot", ["a", "c"], [])
    drawing.refuse_foreign(tmp_path / "plot")
    path.write_bytes(b"mine")
    if suffix != "csv":
        with raises_usage(option="output", found=f"plot.{suffix} exists"):
            drawing.save(Figure(), tmp_path / "plot", ["a", "d"], [])


def test_figures_of_earlier_versions_are_replaced(tmp_path):
    """Their PNG and SVG files have no mark, but the CSV file has the same columns."""
    for suffix in ("png", "svg"):
        (tmp_path / f"plot.{suffix}").write_bytes(b"old")
    (tmp_path / "plot.csv").write_text("a,b\r\n1,2\r\n")
    drawing.refuse_foreign(tmp_path / "plot")
    png, _, _ = drawing.save(Figure(), tmp_path / "plot", ["a", "b"], np.ones((1, 2)))
    assert png.read_bytes() != b"old"


def test_full_disk_while_drawing(tmp_path, monkeypatch):
    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: fail())
    with raises_usage(option="output", found="plot cannot be written: [Errno 28]"):
        drawing.save(Figure(), tmp_path / "plot", ["a"], [])
    assert names(tmp_path) == []
