"""Which checkpoint a run goes on from, and which folders a new run leaves alone."""

import json
import re
import shutil
from pathlib import Path

import pytest

from informin.errors import UsageError
from informin.files import damage, write_manifest
from informin.training.checkpoints import (
    checkpoint_to_resume,
    complete_checkpoints,
    read_history,
    refuse_used_folder,
    set_aside_damaged,
)

SETTINGS = {"queue_size": 8, "projection_head": "mlp"}
RECORD = {
    **{"schema": 2, "informin": "0.2.0", "base_model": None, "data": None, "seed": 1, "options": {}},
    **{"development": None, "history": [], "environment": {"device": "cpu", "threads": 1}},
    **{"steps": 25, "kept_step": 25, "chosen": False},
}
STATE = json.dumps({"global_step": 25, "log_history": [{"loss": 1.5, "step": 25}]})


def checkpoint(run: Path, name: str, whole: bool = True) -> Path:
    """A checkpoint folder; a half-written one has no manifest."""
    folder = run / name
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights of " + name.encode())
    (folder / "config.json").write_text(json.dumps({"informin": SETTINGS | {"temperature": 0.1}}))
    (folder / "scheduler.pt").touch()
    step = int(name.rpartition("-")[2]) if name.startswith("checkpoint-") else 25
    (folder / "training.json").write_text(json.dumps(RECORD | {"options": {}, "steps": step}))
    (folder / "trainer_state.json").write_text(STATE.replace("25", str(step)))
    if whole:
        write_manifest(folder)
    return folder


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
            "it has no readable manifest.json, so it was not written to the end",
        ),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "it has no readable manifest.json"),
        (lambda folder: cut(folder / "manifest.json"), "it has no readable manifest.json"),
        (lambda folder: (folder / "scheduler.pt").unlink(), "scheduler.pt is missing"),
        (lambda folder: cut(folder / "model.safetensors"), "model.safetensors has 23 bytes, and 25 were written"),
        (lambda folder: change(folder / "model.safetensors"), "model.safetensors is not as it was written"),
        (lambda folder: change(folder / "trainer_state.json"), "trainer_state.json is not as it was written"),
    ],
    ids=["none", "list", "cut-manifest", "missing", "cut", "changed-weights", "changed-state"],
)
def test_a_damaged_checkpoint_is_passed_over_with_a_word(tmp_path, caplog, harm, problem):
    whole = checkpoint(tmp_path, "checkpoint-25")
    damaged = checkpoint(tmp_path, "checkpoint-125")
    harm(damaged)
    assert checkpoint_to_resume(tmp_path, "last", SETTINGS) == whole
    (said,) = caplog.messages
    assert said.startswith(f"{damaged} is damaged ({problem}") and said.endswith("): going on from checkpoint-25.")
    with pytest.raises(UsageError, match=re.escape(f"{damaged} is no complete checkpoint: {problem}")):
        checkpoint_to_resume(tmp_path, str(damaged), SETTINGS)
    shutil.rmtree(whole)
    message = f"`resume_from_checkpoint`: {tmp_path} holds no complete checkpoint to go on from. {damaged} is damaged ("
    with pytest.raises(UsageError, match=re.escape(message + problem)):
        checkpoint_to_resume(tmp_path, "last", SETTINGS)


def test_nothing_to_go_on_from(tmp_path):
    message = re.escape(f"`resume_from_checkpoint`: {tmp_path} holds no complete checkpoint to go on from.")
    with pytest.raises(UsageError, match=f"^{message}$"):
        checkpoint_to_resume(tmp_path, "last", SETTINGS)


def test_a_checkpoint_may_be_named_and_lie_anywhere(tmp_path):
    named = checkpoint(tmp_path / "elsewhere", "kept")
    assert checkpoint_to_resume(tmp_path / "run", str(named), SETTINGS) == named
    with pytest.raises(UsageError, match=r"nowhere is no complete checkpoint: there is no such folder"):
        checkpoint_to_resume(tmp_path / "run", str(tmp_path / "nowhere"), SETTINGS)
    checkpoint(tmp_path / "run", "checkpoint-25")
    with pytest.raises(UsageError, match=r"run already holds checkpoint-25"):
        checkpoint_to_resume(tmp_path / "run", str(named), SETTINGS)


def test_an_older_checkpoint_of_the_same_run_would_mix_two_runs(tmp_path):
    older, newer = checkpoint(tmp_path, "checkpoint-25"), checkpoint(tmp_path, "checkpoint-50")
    with pytest.raises(UsageError, match=r"holds checkpoint-50 too, later than checkpoint-25, and"):
        checkpoint_to_resume(tmp_path, str(older), SETTINGS)
    assert checkpoint_to_resume(tmp_path, str(newer), SETTINGS) == newer
    (newer / "scheduler.pt").unlink()
    assert checkpoint_to_resume(tmp_path, str(older), SETTINGS) == older


def test_what_is_left_of_later_ones_is_set_aside(tmp_path):
    whole = checkpoint(tmp_path, "checkpoint-25")
    before = sorted(path.name for path in whole.iterdir())
    checkpoint(tmp_path, "checkpoint-50", whole=False)
    cut(checkpoint(tmp_path, "checkpoint-75") / "scheduler.pt")
    checkpoint(tmp_path, "checkpoint-10")
    (tmp_path / "damaged-checkpoint-75").mkdir()
    (tmp_path / "checkpoint-90").touch()
    (tmp_path / "checkpoint-75-old").mkdir()
    set_aside_damaged(tmp_path, whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("checkpoint-10", "checkpoint-25", "checkpoint-75-old", "checkpoint-90", "damaged-checkpoint-75")
    ]
    assert (tmp_path / "damaged-checkpoint-75" / "manifest.json").exists()
    assert sorted(path.name for path in whole.iterdir()) == before


def test_a_checkpoint_by_a_later_name_is_not_set_aside(tmp_path):
    renamed = checkpoint(tmp_path, "checkpoint-25").rename(tmp_path / "checkpoint-300")
    set_aside_damaged(tmp_path, renamed)
    assert renamed.is_dir()


def test_a_manifest_is_read_with_care(tmp_path):
    """Sizes alone, or contents too; files in folders; nonsense in it."""
    folder = checkpoint(tmp_path, "checkpoint-25", whole=False)
    (folder / "inner").mkdir()
    (folder / "inner" / "state").write_bytes(b"abc")
    write_manifest(folder)
    assert damage(folder) is None
    (folder / "inner" / "state").write_bytes(b"abd")
    assert damage(folder, contents=False) is None and damage(folder) == (
        "inner/state is not as it was written: its SHA-256 differs"
    )
    (folder / "inner" / "state").write_bytes(b"abcd")
    assert damage(folder, contents=False) == "inner/state has 4 bytes, and 3 were written"
    for nonsense in ('{"files": []}', '{"files": {"a": {"size": "1", "sha256": "x"}}}', '{"files": {"a": 1}}'):
        (folder / "manifest.json").write_text(nonsense)
        assert damage(folder).startswith("it has no readable manifest.json")


@pytest.mark.parametrize("name", ["scheduler.pt", "training.json"])
def test_weights_alone_are_no_checkpoint_to_go_on_from(tmp_path, name):
    folder = checkpoint(tmp_path, "checkpoint-25", whole=False)
    (folder / name).unlink()
    write_manifest(folder)
    with pytest.raises(UsageError, match=r"checkpoint-25 lacks training.json, or the state"):
        checkpoint_to_resume(tmp_path, "last", SETTINGS)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "checkpoint-25"])
def test_a_used_folder_is_refused(tmp_path, name):
    if name == "checkpoint-25":
        checkpoint(tmp_path, name, whole=False)  # even a half-written one
    else:
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match=re.escape(f"{tmp_path} already holds {name}. Go on with that run")):
        refuse_used_folder(tmp_path)


def test_a_file_in_the_folders_place_is_refused(tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(UsageError, match=r"`output_dir`: .*run is a file; needed a folder"):
        refuse_used_folder(tmp_path / "run")


@pytest.mark.parametrize("content", [None, "notes.md", "runs/events.out", "checkpoint-notes.txt"])
def test_other_folders_are_not_refused(tmp_path, content):
    folder = tmp_path / "run"
    if content:
        (folder / content).parent.mkdir(parents=True)
        (folder / content).touch()
    refuse_used_folder(str(folder))
    assert folder.exists() is (content is not None), "looking creates nothing"


def test_read_history_takes_the_newest_that_can_be_read(tmp_path):
    texts = {9: '{"global_step": 9, "log_history": [{"step": 9}]}', 10: STATE.replace("25", "10"), 11: "{", 12: "[]"}
    for step, text in texts.items():
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(text)
    assert read_history(str(tmp_path)) == [{"loss": 1.5, "step": 10}]


@pytest.mark.parametrize("folder", ["", "checkpoint-1", "absent"])
def test_read_history_of_what_has_none(folder, tmp_path):
    (tmp_path / "checkpoint-1").mkdir()
    with pytest.raises(UsageError, match=re.escape(f"{tmp_path / folder} holds no complete checkpoint")):
        read_history(tmp_path / folder)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"projection_head": "none"}, "projection_head mlp, and now it is none (`projection_head` says so)"),
        ({"queue_size": 16}, "queue_size 8, and now it is 16 (`queue_size` says so)"),
        ({"queue_size": 0}, "queue_size 8, and now it is 0 (`queue_size` says so)"),
        ({"lm_head": True}, "lm_head 0, and now it is True (`mlm_weight` says so)"),
        (
            {"projector_size": 16},
            "projector_size 0, and now it is 16 (`projector_size`, or a `decorrelation_weight` of 0, says so)",
        ),
    ],
)
def test_a_run_goes_on_with_the_heads_that_it_began_with(tmp_path, change, message):
    """What has no value is off; other options than those that shape heads are free."""
    made = checkpoint(tmp_path, "checkpoint-4")
    now = SETTINGS | {"lm_head": False, "projector_size": 0, "temperature": 0.05}
    assert checkpoint_to_resume(tmp_path, "last", now) == made
    with pytest.raises(UsageError, match=re.escape(f"{made} was trained with {message}. The heads of a run stay")):
        checkpoint_to_resume(tmp_path, "last", now | change)


@pytest.mark.parametrize("began, now", [(16, 0), (16, 32)])
def test_the_size_of_a_head_may_stand_in_the_record_alone(tmp_path, began, now):
    made = checkpoint(tmp_path, "checkpoint-4", whole=False)
    (made / "training.json").write_text(json.dumps(RECORD | {"steps": 4, "options": {"projector_size": began}}))
    write_manifest(made)
    assert checkpoint_to_resume(tmp_path, "last", SETTINGS | {"projector_size": began}) == made
    with pytest.raises(UsageError, match=f"trained with projector_size {began}, and now it is {now} "):
        checkpoint_to_resume(tmp_path, "last", SETTINGS | {"projector_size": now})
