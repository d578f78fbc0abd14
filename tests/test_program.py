"""What the six programs share: Ctrl-C while they load, and options that are nearly right."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import run_analysis
import run_eval
import run_export
import run_push
import run_study
import run_unsup
from informin import program
from tests.conftest import ROOT
from tests.test_run import ENVIRONMENT

PROGRAMS = {module.__name__: module for module in (run_analysis, run_eval, run_export, run_push, run_study, run_unsup)}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="/proc says what a process has loaded")
@pytest.mark.parametrize("name", PROGRAMS)
def test_ctrl_c_while_loading_is_a_word(name):
    process = subprocess.Popen(
        [sys.executable, str(ROOT / f"{name}.py"), "--help"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while "/torch/" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    assert process.communicate() == ("", "Interrupted.\n")
    assert process.returncode == 130


def test_ctrl_c_is_an_exception_again_afterwards(capsys):
    previous = signal.getsignal(signal.SIGINT)
    try:
        program.quiet_while_loading()
        assert signal.getsignal(signal.SIGINT) is not previous

        def main():
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            signal.raise_signal(signal.SIGINT)

        with pytest.raises(SystemExit) as caught:
            program.run(main)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert caught.value.code == 130 and capsys.readouterr().err == "Interrupted.\n"


def test_what_is_to_be_ignored_stays_ignored():
    """As in a shell's background."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        program.quiet_while_loading()
        with pytest.raises(SystemExit):
            program.run(lambda: 0)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)


@pytest.mark.parametrize(
    "name, arguments, near",
    [
        ("run_eval", ["--model_name=x", "--poolers", "cls"], "--pooler"),
        ("run_analysis", ["curves", "--run=x", "--ouput", "y"], "--output"),
        ("run_export", ["a", "b", "--int-8"], "--int8"),
        ("run_push", ["a", "b", "--dry-run"], "--dry_run"),
        ("run_study", ["a.yaml", "--job=2"], "--jobs"),
        ("run_unsup", ["--model_name=x", "--train-files", "y"], "--train_file"),
        ("run_eval", ["--model_name=x", "--zzz"], None),
    ],
)
def test_an_unknown_option_names_the_nearest(name, arguments, near, capsys):
    with pytest.raises(SystemExit) as caught:
        PROGRAMS[name].main(arguments)
    error = capsys.readouterr().err.splitlines()[-1]
    assert caught.value.code == 2 and "no such option." in error
    assert (f"Did you mean {near}? See --help." in error) if near else ("Did you mean" not in error)
