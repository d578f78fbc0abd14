"""Signals outside of training: some of the cases that `python -m tools.kill_runs` runs."""

import functools
import signal
import subprocess
import sys

import pytest

from tests import forked
from tests.cli.test_run import ENVIRONMENT
from tests.conftest import ROOT
from tools import kill_runs

undisturbed = functools.cache(kill_runs.undisturbed)


@pytest.mark.parametrize(
    "place, number",
    [
        ("guide embedding", signal.SIGTERM),
        ("guide embedding", signal.SIGKILL),
        ("export", signal.SIGHUP),
        ("the drift report", signal.SIGINT),
        ("the scoring of labels", signal.SIGTERM),
    ],
)
def test_signal_leaves_no_files_and_rerun_gives_the_same_result(place, number):
    assert kill_runs.problems(place, number, undisturbed(kill_runs.PLACES[place][0])) == []


CLOSED = "import os, sys; os.close({number}); sys.{name} = sys.__{name}__ = None"


@pytest.mark.parametrize("number, name", [(1, "stdout"), (2, "stderr")])
def test_run_with_one_closed_stream(command, tmp_path, number, name):
    code = CLOSED.format(number=number, name=name)
    done = forked.run(forked.script("run_unsup.py", command(eval_strategy="no", eval_pairs=None), before=code))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and (tmp_path / "run" / "model.safetensors").is_file()


def test_run_with_all_streams_closed(command, tmp_path):
    """The shell closes them before Python starts."""
    words = [sys.executable, str(ROOT / "run_unsup.py"), *command(eval_strategy="no", eval_pairs=None, max_steps=1)]
    code = subprocess.run(["sh", "-c", '"$@" >&- 2>&- <&-', "sh", *words], env=ENVIRONMENT).returncode
    assert code == 0 and (tmp_path / "run" / "model.safetensors").is_file()


def test_signal_after_stderr_was_closed(tmp_path):
    kill_runs.save_inputs(tmp_path)
    process = kill_runs.begin_paused(tmp_path, "guide embedding")
    process.stdout.close()
    process.stderr.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM and kill_runs.leftovers(tmp_path) == []


def test_a_pipe_whose_reader_has_ended(command, tmp_path):
    """As in `run_unsup.py ... | head -1`: no traceback, and the checkpoint is named."""
    arguments = command(max_steps=4000, eval_steps=10)
    process = forked.script("run_unsup.py", arguments, env=ENVIRONMENT)
    process.stdout.readline()
    process.stdout.close()
    error = process.stderr.read()
    assert process.wait(60) == 128 + signal.SIGPIPE
    assert "Nothing was saved since the last checkpoint" in error and "Traceback" not in error
