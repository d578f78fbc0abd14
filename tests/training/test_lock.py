"""Only one run at a time can use an output folder."""

import errno

from filelock import FileLock

import run_unsup
from informin.lock import only_run_in
from tests import forked
from tests.cli.test_run_errors import fails
from tests.conftest import raises_usage


def test_a_locked_folder_is_refused(command, tmp_path, capsys):
    holding = (
        "import sys, time; from informin.lock import only_run_in\n"
        "with only_run_in(sys.argv[1]): print('held', flush=True); time.sleep(600)"
    )
    holder = forked.python(holding, [tmp_path / "run"])
    assert holder.stdout.readline() == "held\n"
    error = fails(capsys, command())
    assert f"run is in use by another run (process {holder.pid} on " in error and ", since 2" in error
    holder.kill()  # without cleanup
    holder.wait()
    assert (tmp_path / "run" / ".lock").exists()
    assert run_unsup.main(command(max_steps=1)) == 0, "the lock of a dead process is taken over"
    assert not list((tmp_path / "run").glob(".lock*"))


def test_a_folder_that_cannot_be_created(command, tmp_path, capsys):
    (tmp_path / "file").touch()
    error = fails(capsys, command(output_dir=tmp_path / "file" / "run"))
    assert f"--output_dir {tmp_path / 'file' / 'run'} cannot be written: " in error and "Not a directory" in error


def test_a_lock_file_that_cannot_be_opened_is_kept(tmp_path, monkeypatch):
    """For example the lock of another user."""
    (tmp_path / ".lock").touch()
    (tmp_path / ".lock-holder").write_text("somebody")

    def denied(self, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(FileLock, "acquire", denied)
    with raises_usage(option="output_dir", found="cannot be written"):
        with only_run_in(tmp_path):
            pass
    assert {path.name for path in tmp_path.iterdir()} == {".lock", ".lock-holder"}


def test_only_folders_created_for_the_lock_are_removed(tmp_path):
    (tmp_path / "there").mkdir()
    for folder in (tmp_path / "there", tmp_path / "a" / "b"):
        with only_run_in(folder):
            assert (folder / ".lock").exists()
    with only_run_in(tmp_path / "kept" / "run"):
        (tmp_path / "kept" / "run" / "model").touch()
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        *("kept", "kept/run", "kept/run/model", "there")
    ]
