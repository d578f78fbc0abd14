"""Damaged checkpoints, full disks and other errors while saving."""

import errno
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from informin.publishing.record import load_record
from informin.temporary import PREFIX
from safetensors import SafetensorError

import run_unsup
from informin.evaluation import pairs
from informin.files import damage, write_manifest
from tests.cli.test_run import assert_same_weights
from tests.cli.test_run_errors import fails
from tests.models.any_encoder.folders import Marker
from tests.training.resuming_helpers import assert_same_weights_of_export


@pytest.mark.parametrize(
    "name, harm",
    [
        *[("optimizer.pt", "deleted"), ("scheduler.pt", "garbage"), ("rng_state.pth", "deleted")],
        *[("model.safetensors", "cut"), ("config.json", "garbage"), ("trainer_state.json", "garbage")],
    ],
)
def test_damaged_checkpoints_are_skipped(command, interrupted_run, finished_run, caplog, name, harm):
    shutil.copytree(finished_run / "checkpoint-4", interrupted_run / "checkpoint-4")
    path = interrupted_run / "checkpoint-4" / name
    if harm == "deleted":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-3] if harm == "cut" else b"[]")
    assert run_unsup.main([*command(), "--resume_from_checkpoint"]) == 0
    assert (
        f"{interrupted_run / 'checkpoint-4'} is damaged ({name} " in caplog.text
        and "Resuming from checkpoint-2 instead." in caplog.text
    )
    assert_same_weights(interrupted_run / "checkpoint-4", finished_run / "checkpoint-4")
    assert damage(interrupted_run / "checkpoint-4") is None and (interrupted_run / "damaged-checkpoint-4").is_dir()


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_pickles_in_checkpoints_run_no_code(command, interrupted_run, tmp_path, name):
    checkpoint = interrupted_run / "checkpoint-2"
    torch.save({"state": Marker(tmp_path / "was-run")}, checkpoint / name)
    write_manifest(checkpoint)
    with suppress(Exception):
        run_unsup.main([*command(), "--resume_from_checkpoint"])
    assert not (tmp_path / "was-run").exists()
    torch.load(checkpoint / name, weights_only=False)  # so that this test can fail
    assert (tmp_path / "was-run").exists()


def replace_saves(monkeypatch, replacement) -> None:
    """Replace torch.save, except in the dry run of a save before the first step."""
    save = torch.save

    def chosen(value, path, *rest):
        return (save if PREFIX in str(path) else replacement)(value, path, *rest)

    monkeypatch.setattr(torch, "save", chosen)


def test_damaged_best_checkpoint_is_reported_and_not_loaded(command, interrupted_run, caplog, monkeypatch):
    """The best checkpoint, of step 2, is damaged while the run continues."""
    low = {"spearman": -100.0, "alignment": 0.0, "uniformity": 0.0}
    monkeypatch.setattr(pairs, "score_pairs", lambda *_: low)
    save = torch.save

    def saving(*arguments):
        (interrupted_run / "checkpoint-2" / "model.safetensors").write_bytes(b"x")
        save(*arguments)

    replace_saves(monkeypatch, saving)
    assert run_unsup.main([*command(), "--resume_from_checkpoint"]) == 0
    assert "checkpoint-2, is damaged (model.safetensors has 1 byte" in caplog.text
    record = load_record(interrupted_run)
    assert record["kept_step"] == 4 and record["chosen"] is False
    assert_same_weights_of_export(interrupted_run, interrupted_run / "checkpoint-4")


@pytest.mark.parametrize("at", [2, 4], ids=["first", "second"])
@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("unexpected pos 8405568 vs 8405456"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
    ],
    ids=["os", "quota", "torch", "safetensors"],
)
def test_a_full_disk(command, finished_run, tmp_path, capsys, monkeypatch, at, error):
    run, save, free = tmp_path / "run", torch.save, shutil.disk_usage(tmp_path)._replace(free=3 * 2**10)

    def full(value, path):
        if f"checkpoint-{at}" in str(path):
            Path(path).write_bytes(b"half")
            raise error
        save(value, path)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        patch.setattr(shutil, "disk_usage", lambda path: free)
        message = fails(capsys, command(), code=1)
    assert f"checkpoint-{at} could not be saved: the disk is full. The checkpoint needs 0." in message
    assert (
        "The incomplete checkpoint was deleted." in message and f"{run} has 0.00 MiB" in message and "\n" not in message
    )
    if at == 2:
        assert "There is no earlier checkpoint to resume from." in message and not run.exists()
        return
    assert (
        f"then run the same command with --resume_from_checkpoint last to resume from {run / 'checkpoint-2'}."
        in message
    )
    assert sorted(path.name for path in run.iterdir()) == ["checkpoint-2"]
    assert run_unsup.main([*command(), "--resume_from_checkpoint"]) == 0
    assert_same_weights(run / "checkpoint-4", finished_run / "checkpoint-4")


@pytest.mark.parametrize(
    "error", [OSError(errno.EFBIG, "File too large"), RuntimeError("unexpected pos 64 vs 0")], ids=["os", "torch"]
)
def test_write_errors_other_than_a_full_disk(command, tmp_path, capsys, monkeypatch, error):
    """For example under a limit on file sizes."""

    def broken(value, path):
        Path(path).write_bytes(b"half")
        raise error

    replace_saves(monkeypatch, broken)
    message = fails(capsys, command(), code=1)
    assert (
        f"could not be saved: {error}. The incomplete checkpoint was deleted. There is no earlier checkpoint" in message
    )
    assert not (tmp_path / "run").exists()


def test_other_exceptions_in_a_save_are_not_changed(command, monkeypatch):
    def broken(*_):
        raise RuntimeError("a bug")

    replace_saves(monkeypatch, broken)
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        run_unsup.main(command())


def test_disk_full_during_the_export(command, tmp_path, capsys, monkeypatch):
    """The checkpoints are complete, the message says how to continue, and no exported file is left."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("informin.models.native_files.save_file", full)
    message = fails(capsys, command(), code=1)
    run = tmp_path / "run"
    assert f"The model could not be written to {run}: [Errno 28] No space left on device." in message
    assert message.endswith(
        f"{run / 'checkpoint-4'} is complete. Run: python -m informin export {run / 'checkpoint-4'} NEW_FOLDER"
    )
    assert sorted(path.name for path in run.iterdir()) == ["checkpoint-2", "checkpoint-4"]
