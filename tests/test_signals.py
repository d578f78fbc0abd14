"""Signals outside of training, as `python -m tools.kill_runs` sends all of them everywhere: a part of its rows."""

import signal
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.test_run import ENVIRONMENT
from tools import kill_runs


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
def test_a_signal_leaves_no_files_and_the_next_run_the_same_result(place, number):
    assert kill_runs.problems(place, number, kill_runs.undisturbed(place)) == []


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_a_run_without_stdout_or_stderr(command, tmp_path, closed):
    words = [sys.executable, str(ROOT / "run_unsup.py"), *command(eval_strategy="no", eval_pairs=None)]
    done = subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *words], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and (tmp_path / "run" / "model.safetensors").is_file()


def test_a_signal_after_the_reader_of_stderr_left(tmp_path):
    kill_runs.save_inputs(tmp_path)
    process = kill_runs.begin(
        tmp_path, "guide embedding", "-c", kill_runs.PAUSED, *kill_runs.PLACES["guide embedding"][:3]
    )
    while process.stdout.readline() != "here\n":
        assert process.poll() is None
    process.stdout.close()
    process.stderr.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM and kill_runs.leftovers(tmp_path) == []
