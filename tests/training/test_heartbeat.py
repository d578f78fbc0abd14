"""Several processes: where one is gone, killed or silent, the others end with a word."""

import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext

import pytest
from transformers import Trainer

from informin.errors import LostProcessError
from informin.training import heartbeat, resuming
from tests.conftest import make_sentences
from tests.test_run import ENVIRONMENT
from trainer_informin import InforMinTrainer, InforMinTrainingArguments

WORKER = """
import os, sys, time
import torch, torch.distributed as dist
from datetime import timedelta
from informin.training.heartbeat import Heartbeat, is_of_collective, lost
rank, out, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
os.environ["MASTER_ADDR"] = "127.0.0.1"
dist.init_process_group("gloo", init_method=f"file://{out}/init", rank=rank, world_size=2, timeout=timedelta(minutes=5))
try:
    with Heartbeat(out, torch.device("cpu"), every=0.1, patience=2):
        print("watching", flush=True)
        time.sleep(seconds)
        dist.barrier()
except RuntimeError as error:
    print(lost("gone", out) if is_of_collective(error) else "something else", file=sys.stderr)
    os._exit(1)
print("done", flush=True)
os._exit(0)
"""


@pytest.fixture
def start(tmp_path):
    """Starts both processes, which wait for one another after some seconds; gives them when they watch."""
    begun = []

    def both(*seconds: float) -> list[subprocess.Popen]:
        for rank, wait in enumerate(seconds):
            command = [sys.executable, "-c", WORKER, str(rank), str(tmp_path), str(wait)]
            how = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
            begun.append(subprocess.Popen(command, **how))
        for process in begun:
            assert process.stdout.readline() == "watching\n"
        return begun

    yield both
    for process in begun:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("gone", [0, 1])
def test_a_process_that_is_silent(start, gone):
    """Stopped, as a machine that lost its network: no connection is closed."""
    processes = start(*(3600 if rank == gone else 0 for rank in range(2)))
    time.sleep(1)
    os.kill(processes[gone].pid, signal.SIGSTOP)
    _, said = processes[1 - gone].communicate(timeout=60)
    assert processes[1 - gone].returncode == 1
    assert f"error: Process {gone} of 2 on " in said and "has said nothing for 2 s" in said
    assert "No checkpoint was saved. Run the same command on all machines again." in said


def test_a_process_that_was_killed(start):
    processes = start(0, 3600)
    processes[1].send_signal(signal.SIGKILL)
    _, said = processes[0].communicate(timeout=60)
    assert processes[0].returncode == 1
    assert said.startswith("gone. No checkpoint was saved.")  # by the collective, before it was missed


def test_a_process_that_takes_its_time_is_waited_for(start):
    processes = start(0, 3)
    for process in processes:
        assert process.communicate(timeout=60)[0] == "done\n" and process.returncode == 0


def test_a_process_that_was_suspended_itself_blames_nobody(start):
    processes = start(0, 5)
    for process in processes:
        os.kill(process.pid, signal.SIGSTOP)
    time.sleep(3)
    for process in processes:
        os.kill(process.pid, signal.SIGCONT)
    for process in processes:
        assert process.communicate(timeout=60)[0] == "done\n" and process.returncode == 0


@pytest.mark.parametrize("words, lost", [("[gloo/transport/tcp/pair.cc] Read error", True), ("shape", False)])
def test_training_tells_a_lost_process_from_other_failures(bert, tmp_path, monkeypatch, words, lost):
    options = dict(use_cpu=True, bf16=False, objective="simcse", eval_strategy="no", per_device_train_batch_size=8)
    trainer = InforMinTrainer(str(bert), InforMinTrainingArguments(str(tmp_path), **options), make_sentences(16))

    def fail(*args, **kwargs):
        raise RuntimeError(words)

    monkeypatch.setattr(Trainer, "train", fail)
    monkeypatch.setattr(resuming, "Heartbeat", lambda *args: nullcontext())
    monkeypatch.setattr(heartbeat, "world_size", lambda: 2)
    with pytest.raises(LostProcessError if lost else RuntimeError, match=words.split()[-1]) as raised:
        trainer.train()
    assert isinstance(raised.value, LostProcessError) == lost
