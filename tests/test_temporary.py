"""Temporary files are removed after errors and signals, and after SIGKILL at the next start. Full disks are errors."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from informin import temporary
from informin.guide import cache
from informin.lock import only_run_in
from informin.models.open_model import load_model
from informin.temporary import TemporaryFolder, new_file, remove_leftovers
from tests.conftest import ROOT, make_sentences, raises_usage

WORKER = """
import sys, time
from pathlib import Path
from informin.interrupts import raise_on_signals
from informin.temporary import TemporaryFolder, new_file
raise_on_signals()
with TemporaryFolder(sys.argv[1]) as folder, new_file(Path(sys.argv[1], "file")) as path:
    Path(folder, "part").write_text("x")
    path.write_text("y")
    print("writing", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def writer(tmp_path):
    """Start a process with a temporary folder and a temporary file in `tmp_path`."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT
    )
    assert process.stdout.readline() == b"writing\n" and len(list(tmp_path.iterdir())) == 2
    yield process
    process.kill()
    process.communicate()


def test_new_file_replaces_the_old_one_when_complete(tmp_path):
    target = tmp_path / "file"
    target.write_text("old")
    with pytest.raises(OSError), new_file(target) as path:
        path.write_text("new")
        raise OSError
    assert target.read_text() == "old" and list(tmp_path.iterdir()) == [target]
    with new_file(target) as path:
        path.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new" and list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_leaves_no_temporary_files(writer, tmp_path, number):
    writer.send_signal(number)
    writer.wait(30)
    assert list(tmp_path.iterdir()) == []


def test_only_leftovers_of_dead_processes_are_removed(writer, tmp_path, monkeypatch):
    living = set(tmp_path.iterdir())
    remove_leftovers(tmp_path)
    assert set(tmp_path.iterdir()) == living
    os.kill(writer.pid, signal.SIGKILL)  # a zombie until it is waited for, which counts as dead
    os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)
    others = {tmp_path / ".informin-notes", tmp_path / ".guide-x", tmp_path / "informin"}
    for path in others:
        path.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(temporary, "_machine", lambda: "0" * 8)
        remove_leftovers(tmp_path)
    assert set(tmp_path.iterdir()) == living | others, "another machine cannot know"
    with TemporaryFolder(tmp_path) as own:
        assert set(tmp_path.iterdir()) == others | {Path(own)}
    assert set(tmp_path.iterdir()) == others


def test_process_with_a_reused_id_is_not_the_creator(tmp_path):
    folder = TemporaryFolder(tmp_path)
    machine, pid, start, rest = Path(folder.name).name.removeprefix(".informin-").split("-")
    dead = tmp_path / f".informin-{machine}-{pid}-{int(start) - 500}-{rest}"  # as when a container starts again
    dead.mkdir()
    remove_leftovers(tmp_path)
    assert not dead.exists() and Path(folder.name).exists()
    folder.cleanup()


def test_run_removes_leftovers_at_start(writer, tmp_path):
    writer.kill()
    writer.wait()
    with only_run_in(tmp_path):
        assert not list(tmp_path.glob(".informin-*"))


def test_a_signal_does_not_interrupt_the_cleanup(tmp_path, monkeypatch):
    folder = TemporaryFolder(tmp_path)
    remove = folder._rmtree

    def interrupted(*args, **kwargs):
        monkeypatch.setattr(TemporaryFolder, "_rmtree", remove)
        raise KeyboardInterrupt

    monkeypatch.setattr(TemporaryFolder, "_rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        folder.cleanup()
    assert list(tmp_path.iterdir()) == []


def test_guide_reserves_disk_space(tmp_path):
    """Writing to a sparse memory map on a full disk raises SIGBUS."""
    with cache._new_array(tmp_path / "guide.npy", (1000, 64)) as embeddings:
        (partial,) = tmp_path.glob("*/guide.npy")
        assert partial.stat().st_blocks * 512 >= embeddings.nbytes
    assert np.load(tmp_path / "guide.npy").shape == (1000, 64)


def test_full_disk_is_an_error(bert, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    encoder = load_model(str(bert), ("cls",), device="cpu")
    with raises_usage(
        option="guide_cache", found="cannot be written: [Errno 28] No space left on device", fix="free space"
    ):
        cache.load_guide(tmp_path / "guides", encoder, make_sentences(8))
    assert list((tmp_path / "guides").iterdir()) == []
