"""Which checkpoint a run resumes from, and which folders a new run rejects."""

import json
import shutil
from pathlib import Path

import pytest

from informin.files import damage, write_manifest
from informin.training.checkpoints import (
    checkpoint_to_resume,
    complete_checkpoints,
    read_history,
    refuse_used_folder,
    set_aside_damaged,
)
from tests.conftest import raises_usage

RESUME = "resume_from_checkpoint"
SETTINGS = {"queue_size": 8, "projection_head": "mlp"}
RECORD = {
    **{"schema": 2, "informin": "0.2.0", "base_model": None, "data": None, "seed": 1, "options": {}},
    **{"development": None, "history": [], "environment": {"device": "cpu", "threads": 1}},
    **{"steps": 25, "kept_step": 25, "chosen": False},
}
STATE = json.dumps({"global_step": 25, "log_history": [{"loss": 1.5, "step": 25}]})


def checkpoint(run: Path, name: str, complete: bool = True) -> Path:
    """Create a checkpoint folder; without `complete`, without its manifest."""
    folder = run / name
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights of " + name.encode())
    (folder / "config.json").write_text(json.dumps({"informin": SETTINGS | {"temperature": 0.1}}))
    (folder / "scheduler.pt").touch()
    step = int(name.rpartition("-")[2]) if name.startswith("checkpoint-") else 25
    (folder / "training.json").write_text(json.dumps(RECORD | {"options": {}, "steps": step}))
    (folder / "trainer_state.json").write_text(STATE.replace("25", str(step)))
    if complete:
        write_manifest(folder)
    return folder


def test_inputs_of_a_record_are_a_mapping(tmp_path):
    folder = checkpoint(tmp_path, "checkpoint-25")
    (folder / "training.json").write_text(json.dumps(RECORD | {"inputs": 1.5}))
    write_manifest(folder)
    with raises_usage(found=f"{folder / 'training.json'}: inputs is 1.5; expected a mapping"):
        checkpoint_to_resume(tmp_path, "last", SETTINGS)


def test_checkpoints_are_sorted_by_number(tmp_path):
    made = [checkpoint(tmp_path, f"checkpoint-{step}") for step in (1000, 25, 125)]
    for name in ("checkpoint-best", "other-7"):
        (tmp_path / name).mkdir()
    assert complete_checkpoints(tmp_path) == [made[1], made[2], made[0]]
    assert complete_checkpoints(str(tmp_path / "nowhere")) == []
    assert checkpoint_to_resume(tmp_path, "last", SETTINGS) == made[0]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def change(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"?")


@pytest.mark.parametrize(
    "harm, problem",
    [
        (
            lambda folder: (folder / "manifest.json").unlink(),
            "it has no readable manifest.json, so it is incomplete",
        ),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "it has no readable manifest.json"),
        (lambda folder: cut(folder / "manifest.json"), "it has no readable manifest.json"),
        (lambda folder: (folder / "scheduler.pt").unlink(), "scheduler.pt is missing"),
        (lambda folder: cut(folder / "model.safetensors"), "model.safetensors has 23 bytes instead of 25"),
        (lambda folder: change(folder / "model.safetensors"), "model.safetensors has changed"),
        (lambda folder: change(folder / "trainer_state.json"), "trainer_state.json has changed"),
    ],
    ids=["none", "list", "cut-manifest", "missing", "cut", "changed-weights", "changed-state"],
)
def test_damaged_checkpoint_is_skipped_with_a_warning(tmp_path, caplog, harm, problem):
    complete = checkpoint(tmp_path, "checkpoint-25")
    damaged = checkpoint(tmp_path, "checkpoint-125")
    harm(damaged)
    assert checkpoint_to_resume(tmp_path, "last", SETTINGS) == complete
    (said,) = caplog.messages
    assert said.startswith(f"{damaged} is damaged ({problem}") and said.endswith(
        "). Resuming from checkpoint-25 instead."
    )
    with raises_usage(option=RESUME, found=f"{damaged} is not a complete checkpoint: {problem}"):
        checkpoint_to_resume(tmp_path, str(damaged), SETTINGS)
    shutil.rmtree(complete)
    with raises_usage(option=RESUME, found=f"{tmp_path} has no complete checkpoint; {damaged} is damaged ({problem}"):
        checkpoint_to_resume(tmp_path, "last", SETTINGS)


def test_resuming_without_a_checkpoint_is_an_error(tmp_path):
    with raises_usage(option=RESUME, fix="Start a new run") as error:
        checkpoint_to_resume(tmp_path, "last", SETTINGS)
    assert error.value.found == f"{tmp_path} has no complete checkpoint"


def test_checkpoint_of_another_folder(tmp_path):
    named = checkpoint(tmp_path / "elsewhere", "kept")
    assert checkpoint_to_resume(tmp_path / "run", str(named), SETTINGS) == named
    with raises_usage(option=RESUME, found="nowhere is not a complete checkpoint: there is no such folder"):
        checkpoint_to_resume(tmp_path / "run", str(tmp_path / "nowhere"), SETTINGS)
    checkpoint(tmp_path / "run", "checkpoint-25")
    with raises_usage(option="output_dir", found="run already contains checkpoint-25"):
        checkpoint_to_resume(tmp_path / "run", str(named), SETTINGS)


def test_older_checkpoint_of_the_same_run_is_rejected(tmp_path):
    older, newer = checkpoint(tmp_path, "checkpoint-25"), checkpoint(tmp_path, "checkpoint-50")
    with raises_usage(option=RESUME, found="checkpoint-25 is older than checkpoint-50 in the same folder"):
        checkpoint_to_resume(tmp_path, str(older), SETTINGS)
    assert checkpoint_to_resume(tmp_path, str(newer), SETTINGS) == newer
    (newer / "scheduler.pt").unlink()
    assert checkpoint_to_resume(tmp_path, str(older), SETTINGS) == older


def test_later_damaged_checkpoints_are_set_aside(tmp_path):
    complete = checkpoint(tmp_path, "checkpoint-25")
    before = sorted(path.name for path in complete.iterdir())
    checkpoint(tmp_path, "checkpoint-50", complete=False)
    cut(checkpoint(tmp_path, "checkpoint-75") / "scheduler.pt")
    checkpoint(tmp_path, "checkpoint-10")
    (tmp_path / "damaged-checkpoint-75").mkdir()
    (tmp_path / "checkpoint-90").touch()
    (tmp_path / "checkpoint-75-old").mkdir()
    set_aside_damaged(tmp_path, complete)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("checkpoint-10", "checkpoint-25", "checkpoint-75-old", "checkpoint-90", "damaged-checkpoint-75")
    ]
    assert (tmp_path / "damaged-checkpoint-75" / "manifest.json").exists()
    assert sorted(path.name for path in complete.iterdir()) == before


def test_renamed_checkpoint_is_not_set_aside(tmp_path):
    renamed = checkpoint(tmp_path, "checkpoint-25").rename(tmp_path / "checkpoint-300")
    set_aside_damaged(tmp_path, renamed)
    assert renamed.is_dir()


def test_damage_compares_sizes_and_checksums(tmp_path):
    """Also for files in subfolders. An invalid manifest counts as damage."""
    folder = checkpoint(tmp_path, "checkpoint-25", complete=False)
    (folder / "inner").mkdir()
    (folder / "inner" / "state").write_bytes(b"abc")
    write_manifest(folder)
    assert damage(folder) is None
    (folder / "inner" / "state").write_bytes(b"abd")
    assert damage(folder, contents=False) is None and damage(folder) == ("inner/state has changed: its SHA-256 differs")
    (folder / "inner" / "state").write_bytes(b"abcd")
    assert damage(folder, contents=False) == "inner/state has 4 bytes instead of 3"
    for invalid in ('{"files": []}', '{"files": {"a": {"size": "1", "sha256": "x"}}}', '{"files": {"a": 1}}'):
        (folder / "manifest.json").write_text(invalid)
        assert damage(folder).startswith("it has no readable manifest.json")


@pytest.mark.parametrize("name", ["scheduler.pt", "training.json"])
def test_checkpoint_without_optimizer_state_or_record_is_rejected(tmp_path, name):
    folder = checkpoint(tmp_path, "checkpoint-25", complete=False)
    (folder / name).unlink()
    write_manifest(folder)
    with raises_usage(option=RESUME, found="checkpoint-25 lacks training.json or the optimizer state"):
        checkpoint_to_resume(tmp_path, "last", SETTINGS)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "checkpoint-25"])
def test_used_output_folder_is_rejected(tmp_path, name):
    if name == "checkpoint-25":
        checkpoint(tmp_path, name, complete=False)  # even an incomplete one
    else:
        (tmp_path / name).touch()
    with raises_usage(option="output_dir", found=f"{tmp_path} already contains {name}", fix="Resume that run"):
        refuse_used_folder(tmp_path)


def test_output_folder_that_is_a_file_is_rejected(tmp_path):
    (tmp_path / "run").touch()
    with raises_usage(option="output_dir", found="run is a file", needed="a folder"):
        refuse_used_folder(tmp_path / "run")


@pytest.mark.parametrize("content", [None, "notes.md", "runs/events.out", "checkpoint-notes.txt"])
def test_output_folder_may_contain_other_files(tmp_path, content):
    folder = tmp_path / "run"
    if content:
        (folder / content).parent.mkdir(parents=True)
        (folder / content).touch()
    refuse_used_folder(str(folder))
    assert folder.exists() is (content is not None), "the check creates nothing"


def test_read_history_uses_the_latest_readable_checkpoint(tmp_path):
    texts = {9: '{"global_step": 9, "log_history": [{"step": 9}]}', 10: STATE.replace("25", "10"), 11: "{", 12: "[]"}
    for step, text in texts.items():
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(text)
    assert read_history(str(tmp_path)) == [{"loss": 1.5, "step": 10}]


@pytest.mark.parametrize("folder", ["", "checkpoint-1", "absent"])
def test_read_history_without_a_checkpoint_is_an_error(folder, tmp_path):
    (tmp_path / "checkpoint-1").mkdir()
    with raises_usage(found=f"{tmp_path / folder} has no complete checkpoint"):
        read_history(tmp_path / folder)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"projection_head": "none"}, "projection_head mlp, and now it is none (set by `projection_head`)"),
        ({"queue_size": 16}, "queue_size 8, and now it is 16 (set by `queue_size`)"),
        ({"queue_size": 0}, "queue_size 8, and now it is 0 (set by `queue_size`)"),
        ({"lm_head": True}, "lm_head 0, and now it is True (set by `mlm_weight`)"),
        (
            {"projector_size": 16},
            "projector_size 0, and now it is 16 (set by `projector_size`, or by setting `decorrelation_weight` to 0)",
        ),
    ],
)
def test_resumed_run_keeps_its_heads(tmp_path, change, message):
    """A missing value counts as off. Options that do not shape heads may change."""
    made = checkpoint(tmp_path, "checkpoint-4")
    now = SETTINGS | {"lm_head": False, "projector_size": 0, "temperature": 0.05}
    assert checkpoint_to_resume(tmp_path, "last", now) == made
    with raises_usage(option=RESUME, found=f"{made} was trained with {message}", fix="Heads cannot change"):
        checkpoint_to_resume(tmp_path, "last", now | change)


@pytest.mark.parametrize("began, now", [(16, 0), (16, 32)])
def test_head_size_may_be_in_the_record_only(tmp_path, began, now):
    made = checkpoint(tmp_path, "checkpoint-4", complete=False)
    (made / "training.json").write_text(json.dumps(RECORD | {"steps": 4, "options": {"projector_size": began}}))
    write_manifest(made)
    assert checkpoint_to_resume(tmp_path, "last", SETTINGS | {"projector_size": began}) == made
    with raises_usage(option=RESUME, found=f"trained with projector_size {began}, and now it is {now} "):
        checkpoint_to_resume(tmp_path, "last", SETTINGS | {"projector_size": now})
