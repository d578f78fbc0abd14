"""Which checkpoint a run goes on from, and which folders a new run leaves alone."""

import json
import re
from pathlib import Path

import pytest

from informin.checkpoints import checkpoint_to_resume, complete_checkpoints, read_history, refuse_used_folder
from informin.errors import UsageError

WHOLE = json.dumps({"global_step": 25, "log_history": [{"loss": 1.5, "step": 25}]})
HALF_WRITTEN = {"missing": None, "empty": "", "truncated": WHOLE[:-9]}


def checkpoint(run: Path, name: str, state: str | None = WHOLE) -> Path:
    """A checkpoint folder with weights and, unless None, a trainer_state.json."""
    folder = run / name
    folder.mkdir(parents=True)
    (folder / "model.safetensors").touch()
    if state is not None:
        (folder / "trainer_state.json").write_text(state)
    return folder


def test_checkpoints_are_sorted_by_number(tmp_path):
    made = [checkpoint(tmp_path, f"checkpoint-{step}") for step in (1000, 25, 125)]
    checkpoint(tmp_path, "checkpoint-best")
    checkpoint(tmp_path, "other-7")
    assert complete_checkpoints(tmp_path) == [made[1], made[2], made[0]]
    assert complete_checkpoints(str(tmp_path / "nowhere")) == []
    assert checkpoint_to_resume(tmp_path, "last", {}) == made[0]


@pytest.mark.parametrize("state", HALF_WRITTEN.values(), ids=HALF_WRITTEN)
def test_a_half_written_checkpoint_is_passed_over(tmp_path, state):
    whole = checkpoint(tmp_path, "checkpoint-25")
    half = checkpoint(tmp_path, "checkpoint-125", state)
    assert complete_checkpoints(tmp_path) == [whole]
    assert checkpoint_to_resume(tmp_path, "last", {}) == whole
    with pytest.raises(UsageError, match=re.escape(f"{half} is no complete checkpoint (it needs a readable")):
        checkpoint_to_resume(tmp_path, str(half), {})


@pytest.mark.parametrize("state", HALF_WRITTEN.values(), ids=HALF_WRITTEN)
def test_nothing_to_go_on_from(tmp_path, state):
    message = re.escape(f"--resume_from_checkpoint: {tmp_path} holds no complete checkpoint to go on from")
    with pytest.raises(UsageError, match=message):
        checkpoint_to_resume(tmp_path, "last", {})
    checkpoint(tmp_path, "checkpoint-25", state)
    with pytest.raises(UsageError, match=message):
        checkpoint_to_resume(tmp_path, "last", {})


def test_a_checkpoint_may_be_named_and_lie_anywhere(tmp_path):
    named = checkpoint(tmp_path / "elsewhere", "kept")
    checkpoint(tmp_path / "run", "checkpoint-25")
    assert checkpoint_to_resume(tmp_path / "run", str(named), {}) == named
    with pytest.raises(UsageError, match=r"--resume_from_checkpoint: .*nowhere is no complete checkpoint"):
        checkpoint_to_resume(tmp_path / "run", str(tmp_path / "nowhere"), {})


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "checkpoint-25"])
def test_a_used_folder_is_refused(tmp_path, name):
    if name == "checkpoint-25":
        checkpoint(tmp_path, name, state=None)  # even a half-written one
    else:
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match=re.escape(f"{tmp_path} already holds {name}. Go on with that run")):
        refuse_used_folder(tmp_path)


def test_a_file_in_the_folders_place_is_refused(tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(UsageError, match=r"--output_dir: .*run is a file; needed a folder"):
        refuse_used_folder(tmp_path / "run")


@pytest.mark.parametrize("content", [None, "notes.md", "runs/events.out", "checkpoint-notes.txt"])
def test_other_folders_are_not_refused(tmp_path, content):
    folder = tmp_path / "run"
    if content:
        (folder / content).parent.mkdir(parents=True)
        (folder / content).touch()
    refuse_used_folder(str(folder))
    assert folder.exists() is (content is not None), "looking creates nothing"


def test_read_history_takes_the_newest_complete_checkpoint(tmp_path):
    for step, text in ((9, '{"log_history": [{"step": 9}]}'), (10, '{"log_history": [{"step": 10}]}'), (11, "{")):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(text)
    assert read_history(str(tmp_path)) == [{"step": 10}]


@pytest.mark.parametrize("folder", ["", "checkpoint-1", "absent"])
def test_read_history_of_what_has_none(folder, tmp_path):
    (tmp_path / "checkpoint-1").mkdir()
    with pytest.raises(UsageError, match=re.escape(f"{tmp_path / folder} holds no complete checkpoint")):
        read_history(tmp_path / folder)


def test_a_run_goes_on_with_the_heads_that_it_began_with(tmp_path):
    made = checkpoint(tmp_path, "checkpoint-4")
    (made / "config.json").write_text('{"informin": {"queue_size": 8, "projection_head": "mlp", "temperature": 0.1}}')
    now = {"queue_size": 8, "projection_head": "mlp", "projector_size": 0, "temperature": 0.05}
    assert checkpoint_to_resume(tmp_path, "last", now) == made
    with pytest.raises(UsageError, match=r"checkpoint-4 was trained with queue_size 8, and now it is 16\. Go on with"):
        checkpoint_to_resume(tmp_path, "last", now | {"queue_size": 16})
