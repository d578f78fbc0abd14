"""If one of several processes is lost, killed or silent, the others exit with an error."""

import os
import signal
import time

import pytest
from transformers import Trainer

from informin.errors import LostProcessError
from informin.training import heartbeat
from tests import forked
from tests.cli.test_run import ENVIRONMENT
from tests.conftest import make_sentences
from tests.forked import Forked
from trainer_informin import InforMinTrainer, InforMinTrainingArguments

PATIENCE = 1.0  # seconds
HEARD = 0.3  # seconds after which both processes have heard each other
WORKER = """
import os, sys, time
import torch, torch.distributed as dist
from datetime import timedelta
from informin.errors import LostProcessError
from informin.training.heartbeat import Heartbeat
rank, out, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
os.environ["MASTER_ADDR"] = "127.0.0.1"
dist.init_process_group("gloo", init_method=f"file://{out}/init", rank=rank, world_size=2, timeout=timedelta(minutes=5))
try:
    with Heartbeat(out, torch.device("cpu"), every=0.05, patience=float(sys.argv[4])):
        print("watching", flush=True)
        time.sleep(seconds)
        if len(sys.argv) < 6:
            dist.barrier()
except LostProcessError as error:
    print(error, file=sys.stderr)
    os._exit(1)
print("done", flush=True)
os._exit(0)
"""


@pytest.fixture
def start(tmp_path):
    """Start both processes, and return them once they watch each other. They wait for each other after some seconds."""
    begun = []

    def both(*seconds: float, more: tuple[str, ...] = ()) -> list[Forked]:
        begun.extend(
            forked.python(WORKER, [rank, tmp_path, wait, PATIENCE, *more]) for rank, wait in enumerate(seconds)
        )
        for process in begun:
            assert process.stdout.readline() == "watching\n"
        return begun

    yield both
    for process in begun:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("gone", [0, 1])
def test_a_silent_process(start, gone):
    """The process is stopped and closes no connection, like a machine that lost its network."""
    processes = start(*(3600 if rank == gone else 0 for rank in range(2)))
    time.sleep(HEARD)
    os.kill(processes[gone].pid, signal.SIGSTOP)
    _, said = processes[1 - gone].communicate(timeout=60)
    assert processes[1 - gone].returncode == 1
    assert f"error: Process {gone} of 2 on " in said and f"has been silent for {PATIENCE:g} s" in said
    assert "No checkpoint was saved. Run the same command on all machines again." in said


def test_a_killed_process(start):
    processes = start(0, 3600)
    processes[1].send_signal(signal.SIGKILL)
    _, said = processes[0].communicate(timeout=60)
    assert processes[0].returncode == 1
    assert said.startswith("Another process does not answer (")  # by the collective, before the heartbeat noticed
    assert "). No checkpoint was saved." in said


def test_slow_processes_are_not_lost(start):
    processes = start(0, 1.8 * PATIENCE)
    for process in processes:
        assert process.communicate(timeout=60)[0] == "done\n" and process.returncode == 0


@pytest.mark.parametrize("seconds", [(0, 2 * PATIENCE), (2 * PATIENCE, 0)], ids=["first", "second"])
def test_finished_processes_are_not_lost(start, seconds):
    """The first process, which the others query, stays until they are done."""
    processes = start(*seconds, more=("no barrier",))
    for process in processes:
        assert process.communicate(timeout=60) == ("done\n", "") and process.returncode == 0


def test_a_process_that_is_silent_after_the_first_has_finished(start):
    first, second = start(0, 3600, more=("no barrier",))
    time.sleep(HEARD)
    os.kill(second.pid, signal.SIGSTOP)
    _, said = first.communicate(timeout=60)
    assert first.returncode == 1 and "error: Process 1 of 2 on " in said


def test_a_suspended_process_does_not_report_others(start):
    processes = start(0, 3 * PATIENCE)
    for process in processes:
        os.kill(process.pid, signal.SIGSTOP)
    time.sleep(1.5 * PATIENCE)
    for process in processes:
        os.kill(process.pid, signal.SIGCONT)
    for process in processes:
        assert process.communicate(timeout=60)[0] == "done\n" and process.returncode == 0


@pytest.mark.parametrize("words, lost", [("[gloo/transport/tcp/pair.cc] Read error", True), ("shape", False)])
def test_training_distinguishes_lost_processes_from_other_errors(bert, tmp_path, monkeypatch, words, lost):
    options = dict(use_cpu=True, bf16=False, objective="simcse", eval_strategy="no", per_device_train_batch_size=8)
    trainer = InforMinTrainer(str(bert), InforMinTrainingArguments(str(tmp_path), **options), make_sentences(16))

    def fail(*args, **kwargs):
        raise RuntimeError(words)

    monkeypatch.setattr(Trainer, "train", fail)
    monkeypatch.setattr(heartbeat.Heartbeat, "__enter__", lambda self: self)  # no process listens
    monkeypatch.setattr(heartbeat, "world_size", lambda: 2)
    with pytest.raises(LostProcessError if lost else RuntimeError, match=words.split()[-1]) as raised:
        trainer.train()
    assert isinstance(raised.value, LostProcessError) == lost


# Runs run_unsup.py as one of two processes, and stops forever at the given point.
PROGRAM = """
import os, sys, time
import torch.distributed as dist
import run_unsup
from informin.models import native
from informin.cli import train
from informin.guide import cache
from informin.publishing import trainer as publishing
from informin.training import drift, heartbeat
heartbeat.Heartbeat.__init__.__defaults__ = (0.1, 3.0)
who, where = int(sys.argv[1]), sys.argv[2]
places = dict(
    data=(train, "load_sentences"), guide=(cache, "_embed"), evaluation=(native, "embed"),
    export=(publishing, "export_folder"), drift=(drift, "measure_drift"), push=(train, "finish"),
)
module, name = places[where]
work = getattr(module, name)
def stay(*args, **kwargs):
    if dist.get_rank() == who:
        print("here", flush=True)
        time.sleep(3600)
    return work(*args, **kwargs)
setattr(module, name, stay)
os._exit(run_unsup.main(sys.argv[3:]))
"""


# "data" is another place where they wait; at the end of "drift", and in "push", nobody waits for the first.
@pytest.mark.parametrize("where, gone", [("guide", 0), ("evaluation", 1), ("export", 0)])
def test_a_process_stopped_anywhere_in_a_program(command, tmp_path, where, gone):
    arguments = command(per_device_train_batch_size=8, view="neighbor", view_neighbors=1, senteval_dir=tmp_path)
    processes = forked.group(PROGRAM, [[gone, where, *arguments]] * 2, ENVIRONMENT)
    try:
        while processes[gone].stdout.readline() != "here\n":
            assert processes[gone].poll() is None, processes[gone].stderr.read()
        os.kill(processes[gone].pid, signal.SIGSTOP)
        _, said = processes[1 - gone].communicate(timeout=120)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert processes[1 - gone].returncode == 1
    assert f"error: Process {gone} of 2" in said and "has been silent for 3 s" in said
    left = [path.name for path in tmp_path.rglob(".informin-*")]
    assert left == [] or gone == 0, "those of a stopped process are its own"
