"""A checkpoint is finished in the background while training continues, and whatever reads it waits for its end."""

import copy
import os
import resource
import shutil
import threading
import time
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback
from transformers.integrations.integration_utils import MLflowCallback, WandbCallback, WandbLogModel

import trainer_informin
from informin.errors import SaveError
from informin.evaluation import pairs
from informin.files import damage
from informin.training import checkpoints
from informin.training.callbacks import Throughput
from informin.training.checkpoints import Background, EvaluationLeft, complete_checkpoints, reads_checkpoint, step_of
from tests.training.helpers import assert_same, weights_of

STEPS = dict(max_steps=3, eval_strategy="no", save_strategy="steps", save_steps=1, save_total_limit=9)
TWO_STEPS = STEPS | dict(max_steps=2)
LONG = 120.0  # seconds, for what takes no time unless the code is wrong


class At(TrainerCallback):
    """Calls a function at an event of each step, with the number of the step.

    The event must not be `on_save`: the trainer finishes a checkpoint before it calls that of a user's callback.
    """

    def __init__(self, event: str, call):
        setattr(self, event, lambda args, state, control, **kwargs: call(state.global_step))


class OnSave(TrainerCallback):
    """Keeps what is wrong with each checkpoint in `on_save`."""

    def __init__(self):
        self.found = []

    def on_save(self, args, state, control, **kwargs):
        self.found.append(damage(Path(args.output_dir, f"checkpoint-{state.global_step}")))


@pytest.fixture
def slow(monkeypatch):
    """Make the background work so slow that whoever does not wait finds an incomplete checkpoint."""
    finish = checkpoints.finish_checkpoint

    def slowly(*args, **kwargs):
        time.sleep(0.1)
        finish(*args, **kwargs)

    monkeypatch.setattr(checkpoints, "finish_checkpoint", slowly)


@pytest.fixture
def blocked(monkeypatch):
    """Hold the finishing of checkpoint-2 until the returned event is set."""
    event = threading.Event()
    finish = checkpoints.finish_checkpoint

    def after_event(folder, *args, **kwargs):
        assert folder.name != "checkpoint-2" or event.wait(LONG)
        finish(folder, *args, **kwargs)

    monkeypatch.setattr(checkpoints, "finish_checkpoint", after_event)
    return event


def steps_of(trainer) -> list[int]:
    return [step_of(path) for path in complete_checkpoints(trainer.args.output_dir)]


def test_a_checkpoint_has_the_state_of_its_step_although_training_continues(build, blocked):
    """The optimizer has made the next step when its state is written, and the resumed run is still bit-equal."""
    states = {}

    def after_step(step: int) -> None:
        states[step] = copy.deepcopy(trainer.optimizer.state_dict()["state"])
        if step == 3:
            assert steps_of(trainer) == [1]
            blocked.set()

    trainer = build(callbacks=[At("on_step_end", after_step)], **STEPS)
    trainer.train()
    folder = Path(trainer.args.output_dir)
    assert steps_of(trainer) == [1, 2, 3]
    saved = torch.load(folder / "checkpoint-2" / "optimizer.pt", weights_only=True)["state"]
    assert_same(saved, states[2])
    assert not saved[0]["exp_avg"].equal(states[3][0]["exp_avg"])

    shutil.rmtree(folder / "checkpoint-3")
    again = build(**STEPS)
    again.train("last")
    assert again.throughput.first_step == 2
    assert_same(weights_of(again), weights_of(trainer))


def test_older_checkpoints_are_deleted_after_the_manifest_is_written(build, slow, monkeypatch):
    present = {}
    write = checkpoints.write_manifest

    def write_manifest(folder):
        present[step_of(folder)] = steps_of(trainer)
        write(folder)

    monkeypatch.setattr(checkpoints, "write_manifest", write_manifest)
    trainer = build(**STEPS | dict(save_total_limit=1))
    trainer.train()
    assert present == {1: [], 2: [1], 3: [2]}
    assert steps_of(trainer) == [3]


def test_an_incomplete_checkpoint_of_a_later_step_does_not_replace_the_latest(build):
    """A run that was killed while it saved left it, and the run that resumed before it was stopped earlier."""
    trainer = build(**STEPS | dict(save_total_limit=1))
    stray = Path(str(trainer.args.output_dir), "checkpoint-9", "model.safetensors")
    stray.parent.mkdir(parents=True)
    stray.write_text("of a killed run, or of another program")
    trainer.train()
    assert steps_of(trainer) == [3] and stray.exists()


@pytest.mark.parametrize("last", [2, 3])
def test_a_disk_that_is_full_in_the_background_ends_the_run(build, last):
    """The file system refuses optimizer.pt, which has twice the size of the weights. The next wait raises the error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(step: int) -> None:
        if step == last:
            size = os.path.getsize(folder / "checkpoint-1" / "model.safetensors")
            resource.setrlimit(resource.RLIMIT_FSIZE, (size * 3 // 2, before[1]))

    trainer = build(callbacks=[At("on_step_end", fill)], **STEPS)
    folder = Path(trainer.args.output_dir)
    try:
        with pytest.raises(SaveError, match=f"checkpoint-{last}"):
            trainer.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert steps_of(trainer) == list(range(1, last))
    assert not (folder / f"checkpoint-{last}").exists() and not (folder / f"checkpoint-{last + 1}").exists()


def test_the_best_checkpoint_is_complete_when_it_is_loaded(build, monkeypatch, slow, caplog):
    scores = iter([10.0, 50.0, 90.0])
    flat = {"alignment": 0.0, "uniformity": 0.0}
    monkeypatch.setattr(pairs, "score_pairs", lambda *_: flat | {"spearman": next(scores)})
    trainer = build(max_steps=2, eval_steps=1)
    trainer.train()
    assert trainer.state.best_global_step == 2 and trainer.record().chosen
    assert "damaged" not in caplog.text


def test_the_last_checkpoint_is_complete_when_training_ends(build, slow):
    found = []
    trainer = build(callbacks=[At("on_train_end", lambda step: found.append(steps_of(trainer)))], **TWO_STEPS)
    trainer.train()
    assert found == [[1, 2]]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_in_training_waits_for_the_checkpoint(build, slow, error):
    def fail(step: int) -> None:
        if step == 2:
            raise error

    trainer = build(callbacks=[At("on_step_end", fail)], **STEPS)
    with pytest.raises(error):
        trainer.train()
    assert steps_of(trainer) == [1]


def test_the_checkpoint_of_an_evaluation_that_a_signal_ended_is_complete(build, slow):
    found = []

    def leave(step: int) -> None:
        if step == 2:
            raise EvaluationLeft

    end = At("on_train_end", lambda step: found.append(steps_of(trainer)))
    trainer = build(callbacks=[At("on_prediction_step", leave), end])
    trainer.train()
    assert found == [[2]]


def test_a_callback_of_the_user_reads_complete_checkpoints(build, slow):
    callback = OnSave()
    build(callbacks=[callback], **TWO_STEPS).train()
    assert callback.found == [None] * 2


@pytest.mark.parametrize("variable, asks", [("WANDB_LOG_MODEL", "checkpoint"), ("HF_MLFLOW_LOG_ARTIFACTS", "1")])
def test_reports_wait_for_checkpoints_only_if_they_upload_them(monkeypatch, variable, asks):
    """Without the packages: the callbacks get what their constructors read."""
    monkeypatch.setattr(WandbCallback, "__init__", lambda self: setattr(self, "_log_model", wandb_log_model()))
    monkeypatch.setattr(MLflowCallback, "__init__", lambda self: setattr(self, "_log_artifacts", mlflow_artifacts()))
    monkeypatch.setattr(MLflowCallback, "__del__", lambda self: None)
    assert not any(map(reads_checkpoint, [WandbCallback(), MLflowCallback(), Throughput(), TrainerCallback()]))
    monkeypatch.setenv(variable, asks)
    assert any(map(reads_checkpoint, [WandbCallback(), MLflowCallback()]))
    monkeypatch.delenv(variable)

    class Mine(WandbCallback):
        def on_save(self, args, state, control, **kwargs):
            """Read the checkpoint."""

    assert reads_checkpoint(Mine())


def wandb_log_model() -> WandbLogModel:
    return WandbLogModel(os.environ.get("WANDB_LOG_MODEL", "false"))


def mlflow_artifacts() -> bool:
    return os.environ.get("HF_MLFLOW_LOG_ARTIFACTS") == "1"


@pytest.mark.parametrize("file", ["scheduler.pt", "rng_state.pth"])
def test_a_disk_that_is_full_in_training_ends_the_run(build, monkeypatch, file):
    """The file system refuses the file when PyTorch writes it."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    save = torch.save

    def full(value, path, *args, **kwargs):
        is_second = Path(path).parent.name == "checkpoint-2"
        if Path(path).name == file and is_second:
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
        save(value, path, *args, **kwargs)

    monkeypatch.setattr(torch, "save", full)
    trainer = build(**STEPS)
    try:
        with pytest.raises(SaveError, match="checkpoint-2"):
            trainer.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert steps_of(trainer) == [1] and not Path(trainer.args.output_dir, "checkpoint-2").exists()


def test_another_error_of_pytorch_is_not_a_full_disk(build, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(RuntimeError, match="out of memory") as info:
        build(**STEPS).train()
    assert not isinstance(info.value, SaveError)


def test_a_push_follows_the_complete_checkpoint(build, slow, monkeypatch):
    found = []
    trainer = build(**TWO_STEPS)
    folder = Path(trainer.args.output_dir)

    def push(export, to, step):
        found.append(damage(folder / f"checkpoint-{step}"))

    monkeypatch.setattr(trainer_informin, "push_checkpoint", push)
    trainer.args.push_to_hub = True
    trainer.train()
    assert found == [None] * 2


def test_an_interrupted_wait_can_be_repeated(monkeypatch):
    """After Ctrl-C in a wait, the run still ends with the error of the background work."""
    event = threading.Event()
    background = Background()

    def work():
        assert event.wait(LONG)
        raise SaveError("full")

    background.start(work)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            background.wait()
    event.set()
    with pytest.raises(SaveError):
        background.wait()
    background.wait()


def interrupted(*_) -> None:
    raise KeyboardInterrupt


def test_python_waits_for_the_thread_of_any_thread():
    """A daemon's threads are daemons by default, and Python ends them when it exits."""
    background = Background()
    event = threading.Event()
    before = threading.enumerate()
    starter = threading.Thread(target=background.start, args=(lambda: event.wait(LONG),), daemon=True)
    starter.start()
    starter.join()
    started = [thread for thread in threading.enumerate() if thread not in before and thread.name == "checkpoint"]
    event.set()
    background.wait()
    assert [thread.daemon for thread in started] == [False]
