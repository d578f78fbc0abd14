"""What the six programs share: Ctrl-C, what is said and returned at the end, and options that are nearly right."""

import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import transformers

import run_analysis
import run_eval
import run_export
import run_push
import run_study
import run_unsup
from informin import errors, interrupts, program
from informin.errors import InforMinError, PushError, SaveError, UndefinedScoreError, UsageError
from tests.conftest import ROOT
from tests.help_texts import STAMP, help_of
from tests.test_run import ENVIRONMENT

PROGRAMS = {module.__name__: module for module in (run_analysis, run_eval, run_export, run_push, run_study, run_unsup)}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="/proc says what a process has loaded")
@pytest.mark.parametrize(
    "name, number, said",
    [
        *((name, signal.SIGINT, "Interrupted.\n") for name in (*PROGRAMS, "installed")),
        ("run_unsup", signal.SIGTERM, "Interrupted by SIGTERM.\n"),
        ("run_unsup", signal.SIGHUP, "Interrupted by SIGHUP.\n"),
    ],
)
def test_a_signal_while_loading_is_a_line(name, number, said):
    installed = ["-c", "from informin.program import train; train()"]  # as informin-train says it
    process = subprocess.Popen(
        [sys.executable, *([str(ROOT / f"{name}.py")] if name in PROGRAMS else installed), "--nothing"],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while "/torch/" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(number)
    assert process.communicate() == ("", said)
    assert process.returncode == 128 + number


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_answers_without_loading_anything(name):
    """What it prints is what the program itself would."""
    stamp, _, saved = (program.HELP / f"{name}.txt").read_text(encoding="utf-8").partition("\n")
    if stamp != STAMP:
        pytest.skip(f"the saved text is of {stamp}, and here is {STAMP}: the program answers itself")
    assert saved == help_of(name), "write it again: python -m tests.help_texts"
    for flag in ("--help", "-h"):
        argv = [sys.executable, "-X", "importtime", str(ROOT / f"{name}.py"), flag]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, env=ENVIRONMENT)
        assert done.stdout == saved
        assert not re.search(r"\| +(torch|transformers|numpy)$", done.stderr, re.MULTILINE)


def test_help_of_another_transformers_is_not_the_saved_one(monkeypatch, tmp_path, capsys):
    (tmp_path / "run_eval.txt").write_text("transformers 0.1\nold", encoding="utf-8")
    monkeypatch.setattr(program, "HELP", tmp_path)
    monkeypatch.setattr(sys, "argv", ["run_eval.py", "--help"])
    assert program.answer_help("run_eval") is None and capsys.readouterr().out == ""
    (tmp_path / "run_eval.txt").write_text(f"{STAMP}\nnew\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="0"):
        program.answer_help("run_eval")
    assert capsys.readouterr().out == "new\n"
    monkeypatch.setattr(sys, "argv", ["run_eval.py", "drift", "--help"])
    assert program.answer_help("run_eval") is None


@pytest.fixture
def handlers_as_before():
    previous = {number: signal.getsignal(number) for number in interrupts.SIGNALS}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers_as_before")
@pytest.mark.parametrize(
    "number, said",
    [
        (signal.SIGINT, "Interrupted during B."),
        (signal.SIGTERM, "Interrupted by SIGTERM during B."),
        (signal.SIGHUP, "Interrupted by SIGHUP during B."),
    ],
)
def test_a_signal_is_an_exception_after_loading(capsys, number, said):
    """It passes through KeyboardInterrupt's handlers, and the innermost name of what it interrupted is said."""
    program.quiet_while_loading()
    cleaned = []

    def main():
        try:
            with interrupts.during("A"), interrupts.during("B"):
                signal.raise_signal(number)
        except KeyboardInterrupt:
            cleaned.append(number)
            signal.raise_signal(number)  # the same one, handed on by a launcher
            raise

    with pytest.raises(SystemExit) as caught:
        program.run(main)
    assert caught.value.code == 128 + number and capsys.readouterr().err == f"{said}\n"
    assert cleaned == [number]


@pytest.mark.usefixtures("handlers_as_before")
def test_of_several_processes_the_first_says_what_was_interrupted(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit) as caught:
        program.run(lambda: signal.raise_signal(signal.SIGTERM))
    assert caught.value.code == 143 and capsys.readouterr().err == ""


@pytest.mark.usefixtures("handlers_as_before")
def test_a_forked_worker_ends_as_ever():
    interrupts.raise_on_signals()
    if (pid := os.fork()) == 0:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM


@pytest.mark.usefixtures("handlers_as_before")
@pytest.mark.parametrize("number", interrupts.SIGNALS)
def test_what_is_to_be_ignored_stays_ignored(number):
    """As in a shell's background."""
    signal.signal(number, signal.SIG_IGN)
    program.quiet_while_loading()
    with pytest.raises(SystemExit):
        program.run(lambda: 0)
    assert signal.getsignal(number) is signal.SIG_IGN


def fail(error: BaseException):
    """Work that ends in it."""

    def work():
        raise error

    return work


@pytest.mark.usefixtures("logging_as_before")
@pytest.mark.parametrize(
    "error, code, said",
    [
        (
            UsageError("`lambda` is 0; give `rate`, not `a rate`."),
            2,
            "error: --lambda is 0; give `rate`, not `a rate`.",
        ),
        (UsageError("`lambda_b`, `b`"), 2, "error: `lambda_b`, --b"),
        (SaveError("No space."), 1, "error: No space."),
        (UndefinedScoreError("NaN."), 1, "error: NaN."),
        (
            PushError("The push failed.", dict(folder="my folder", repo="me/m", branch="v2", overwrite=True)),
            1,
            "error: The push failed. Finish with: python run_push.py 'my folder' me/m --branch v2 --overwrite",
        ),
        (KeyboardInterrupt(), 130, "Interrupted."),
    ],
    ids=repr,
)
def test_what_ends_a_program_is_said(capsys, error, code, said):
    assert program.exit_code(fail(error), ["lambda", "b"]) == code
    assert capsys.readouterr().err == f"{said}\n"


@pytest.mark.usefixtures("logging_as_before")
def test_the_rest_of_an_exit_code(capsys):
    assert [program.exit_code(lambda code=code: code, []) for code in (None, 0, 1, 143)] == [0, 0, 1, 143]
    assert program.exit_code(fail(KeyboardInterrupt()), [], "Nothing is kept.") == 130
    assert capsys.readouterr().err == "Interrupted. Nothing is kept.\n"
    with pytest.raises(ZeroDivisionError):
        program.exit_code(fail(ZeroDivisionError()), [])
    own = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, InforMinError)]
    assert [kind for kind in own if kind.exit_code == 2] == [UsageError] and len(own) > 5


@pytest.mark.usefixtures("logging_as_before")
def test_the_library_speaks_and_transformers_is_quiet():
    transformers.utils.logging.set_verbosity_info()
    logging.getLogger("informin").setLevel(logging.ERROR)
    seen = []
    program.exit_code(lambda: seen.append(logging.getLogger("informin.any").isEnabledFor(logging.INFO)), [])
    assert seen == [True] and transformers.utils.logging.get_verbosity() == logging.ERROR
    assert not transformers.utils.logging.is_progress_bar_enabled()


@pytest.mark.usefixtures("logging_as_before")
@pytest.mark.parametrize(
    "name, work, arguments",
    [("run_export", "export", ["a", "b"]), ("run_push", "push", ["a", "b"]), ("run_study", "work", ["a.yaml"])],
)
def test_ctrl_c_at_work_is_a_word(name, work, arguments, monkeypatch, capsys):
    monkeypatch.setattr(PROGRAMS[name], work, lambda args: fail(KeyboardInterrupt())())
    assert PROGRAMS[name].main(arguments) == 130
    assert capsys.readouterr() == ("", "Interrupted.\n")


def test_names_of_options():
    """Those of sub-commands too; what is given by its place has no flag."""
    assert {"seed", "max_sentences", "run"} <= set(run_analysis.parser().option_names())
    assert {"private", "dry_run"} <= set(run_push.parser().option_names())
    assert not {"folder", "repo"} & set(run_push.parser().option_names())


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
    try:
        code = PROGRAMS[name].main(arguments)
    except SystemExit as caught:  # argparse's
        code = caught.code
    error = capsys.readouterr().err.splitlines()[-1]
    assert code == 2 and "no such option." in error
    assert (f"Did you mean {near}? See --help." in error) if near else ("Did you mean" not in error)
