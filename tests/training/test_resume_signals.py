"""Signals during evaluations and saves, and the resumed run."""

import functools
import signal
import time
from pathlib import Path

import pytest
from transformers import TrainerCallback

from informin.cli import program
from informin.training.arguments import InforMinTrainingArguments
from informin.training.checkpoints import LAUNCHED, StopOnSignal, complete_checkpoints, step_of
from tests.conftest import make_sentences
from trainer_informin import InforMinTrainer


class Sender(TrainerCallback):
    """Delivers a signal to `stop` at an event of a step."""

    def __init__(self, stop: StopOnSignal, event: str, at: int):
        self.times = 0

        def send(args, state, control, **kwargs):
            if state.global_step == at:
                stop.received, self.times = signal.SIGTERM, self.times + 1

        setattr(self, event, send)


def run_in(folder, model, pairs, strategy: str, callbacks=(), resume=None) -> InforMinTrainer:
    """Train for four steps over two epochs, evaluated and saved after every second."""
    steps = {"steps": dict(eval_steps=2, save_steps=2, max_steps=4), "epoch": dict(num_train_epochs=2)}[strategy]
    how = dict(eval_strategy=strategy, save_strategy=strategy, seed=1, objective="simcse", learning_rate=1e-3)
    how |= dict(per_device_train_batch_size=8, per_device_eval_batch_size=8, report_to=[], bf16=False) | steps
    args = InforMinTrainingArguments(str(folder), use_cpu=True, **how)
    trainer = InforMinTrainer(
        str(model), args, train_dataset=make_sentences(16), eval_dataset=str(pairs), callbacks=list(callbacks)
    )
    trainer.train(resume)
    return trainer


@pytest.fixture
def run(bert, pairs_file, tmp_path):
    """Return a function that trains in one folder."""

    def start(strategy: str = "steps", callbacks=(), resume=None) -> InforMinTrainer:
        return run_in(tmp_path / "run", bert, pairs_file, strategy, callbacks, resume)

    return start


@pytest.fixture(scope="module")
def uninterrupted(bert, pairs_file, tmp_path_factory):
    """Return a function that returns the run that no signal interrupts, by its strategy."""

    @functools.cache
    def trained(strategy: str = "steps") -> InforMinTrainer:
        return run_in(tmp_path_factory.mktemp(strategy) / "whole", bert, pairs_file, strategy)

    return trained


def assert_same_run(one: InforMinTrainer, other: InforMinTrainer) -> None:
    assert scores(one) == scores(other)
    assert one.state.best_metric == other.state.best_metric
    assert Path(one.state.best_model_checkpoint).name == Path(other.state.best_model_checkpoint).name
    for name, weight in other.model.state_dict().items():
        assert weight.equal(one.model.state_dict()[name]), name


@pytest.mark.parametrize("strategy, at", [("steps", 2), ("steps", 4), ("epoch", 2)])
def test_a_signal_stops_the_evaluation(run, uninterrupted, tmp_path, at, strategy):
    """It stops after the first batch. The resumed run evaluates first and equals the uninterrupted run."""
    stop = StopOnSignal()
    sender = Sender(stop, "on_prediction_step", at)
    left = run(strategy, [sender, stop])
    assert sender.times == 1 and left.state.global_step == at
    assert "eval_spearman" not in left.state.log_history[-1] and complete_checkpoints(tmp_path / "run")
    assert_same_run(run(strategy, resume="last"), uninterrupted(strategy))


def test_a_signal_during_the_repeated_evaluation_waits_for_its_end(run, uninterrupted):
    stop, again = StopOnSignal(), StopOnSignal()
    run(callbacks=[Sender(stop, "on_prediction_step", 2), stop])
    left = run(callbacks=[Sender(again, "on_train_begin", 2), again], resume="last")
    assert left.state.global_step == 3 and 2 in scores(left)
    assert_same_run(run(resume="last"), uninterrupted())


@pytest.mark.parametrize("event", ["on_evaluate", "on_save"])
def test_a_signal_after_an_evaluation_or_in_a_save_stops_training(run, uninterrupted, event):
    stop = StopOnSignal()
    left = run(callbacks=[Sender(stop, event, 2), stop])
    assert left.state.global_step == 2 and 2 in scores(left)
    assert_same_run(run(resume="last"), uninterrupted())


def test_a_signal_that_ends_a_command_saves_a_checkpoint_instead(run, tmp_path):
    class Raise(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 2:
                signal.raise_signal(signal.SIGTERM)

    with StopOnSignal() as stop:
        left = run(callbacks=[Raise(), stop])
    assert stop.received == signal.SIGTERM and left.state.global_step == 3
    assert step_of(complete_checkpoints(tmp_path / "run")[-1]) == 3


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"])
def test_every_signal_that_ends_a_command_is_received(name):
    """SLURM sends SIGUSR1 before the time limit, whose usual effect ends the process."""
    number = getattr(signal, name)
    with StopOnSignal() as stop:
        signal.raise_signal(number)
    assert stop.received == number


@pytest.mark.parametrize("variable", [None, *LAUNCHED])
def test_a_second_signal_ends_the_run_unless_a_launcher_may_have_forwarded_it(monkeypatch, variable):
    """However late: on a machine under load, torchrun forwards Ctrl-C seconds after the terminal has sent it."""
    monkeypatch.setattr(program, "SAME", 0.1)
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "1")
    previous = signal.signal(signal.SIGTERM, lambda number, frame: ends.append(number))
    ends: list[int] = []
    try:
        with StopOnSignal() as stop:
            signal.raise_signal(signal.SIGTERM)
            if variable:
                time.sleep(2 * program.SAME)
                signal.raise_signal(signal.SIGTERM)
            assert stop.received == signal.SIGTERM and not ends
            signal.raise_signal(signal.SIGTERM)
            assert ends == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, previous)


def scores(trainer) -> dict[int, float]:
    return {entry["step"]: entry["eval_spearman"] for entry in trainer.state.log_history if "eval_spearman" in entry}
