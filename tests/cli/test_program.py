"""What the commands share: one-line errors, exit codes and signals."""

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers

from informin import errors
from informin.cli import program
from informin.errors import InforMinError, PushError, SaveError, UndefinedScoreError, UsageError
from informin.training.launcher import SIGNALS
from tests.conftest import ROOT


@pytest.fixture
def handlers_as_before():
    previous = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


def fail(error: BaseException):
    """Return a function that raises the error."""

    def work():
        raise error

    return work


HELP = "__import__('informin.cli').cli.run_command('embed', '-h')"
PUSH = {"model_name": "my folder", "hub_model_id": "me/m", "revision": "v2", "overwrite": True}


@pytest.mark.parametrize(
    "error, code, line",
    [
        (UsageError("`lambda` is 0; give `rate`."), 2, "error: --lambda is 0; give `rate`."),
        (UsageError("is 0", option="b", needed="1"), 2, "error: --b is 0; expected 1."),
        (SaveError("No space."), 1, "error: No space."),
        (UndefinedScoreError("NaN."), 1, "error: NaN."),
        (OSError(28, "No space\nleft", "a.npy"), 1, "error: [Errno 28] No space left: 'a.npy'"),
        (BrokenPipeError(32, "Broken pipe"), 1, "error: [Errno 32] Broken pipe"),  # not that of the output
        (PermissionError(13, "Denied", "a"), 2, "error: [Errno 13] Denied: 'a'"),
        (FileNotFoundError(2, "No file", "a"), 2, "error: a does not exist. Check the path."),
        (NotADirectoryError(20, "No folder", "a"), 2, "error: [Errno 20] No folder: 'a'"),
        (OSError(30, "Read-only", "a"), 2, "error: [Errno 30] Read-only: 'a'"),
        (
            PushError("The push failed.", PUSH),
            1,
            "error: The push failed. Finish with: informin push --model_name 'my folder' --hub_model_id me/m "
            "--revision v2 --overwrite",
        ),
        (KeyboardInterrupt(), 130, "Interrupted. The rest is kept."),
        (program.Interrupted(signal.SIGTERM), 143, "Interrupted by SIGTERM. The rest is kept."),
    ],
    ids=repr,
)
def test_errors_and_signals_are_printed_in_one_line(capsys, error, code, line):
    function = program.after_signal("The rest is kept.")(fail(error))
    assert program.exit_code(function, ["lambda", "b"]) == code
    assert capsys.readouterr().err == f"{line}\n"


def test_exit_codes():
    assert [program.exit_code(lambda code=code: code, []) for code in (None, 0, 1, 143)] == [0, 0, 1, 143]
    with pytest.raises(ZeroDivisionError):
        program.exit_code(fail(ZeroDivisionError()), [])
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, InforMinError)]
    assert [kind for kind in classes if kind.exit_code == 2] == [UsageError]


def started(main: str, stdout: Any = subprocess.PIPE, **environment: str) -> subprocess.Popen:
    """Start a program whose main function is an expression."""
    code = f"from informin.cli.program import *; run_program(lambda: exit_code(lambda: {main}, []))"
    names = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": "", **environment}
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=stdout, stderr=subprocess.PIPE, cwd=ROOT, env=os.environ | names
    )


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_what_the_console_cannot_show_is_replaced(encoding):
    text = "a café \N{GRINNING FACE}"
    process = started(f"print({text!a})", PYTHONIOENCODING=encoding)
    out, err = process.communicate()
    assert (out.rstrip(), err, process.returncode) == (text.encode(encoding, "replace"), b"", 0)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("informin.texts", r"100%, a\x1b]0;b\x07\nc\x9b\udce9 é"),
        ("trainer_informin", r"100%, a\x1b]0;b\x07\nc\x9b\udce9 é"),
        ("library", "100%, a\\x1b]0;b\\x07\nc\\x9b\\udce9 é"),
    ],
)
def test_a_terminal_does_not_obey_messages(name, line):
    """They name files. The messages of libraries may have several lines."""
    message = "100%, a\x1b]0;b\x07\nc\x9b\udce9 é"
    process = started(f"logging.getLogger({name!r}).warning({message!a})")
    out, err = process.communicate()
    assert (out, err.decode(), process.returncode) == (b"", f"{line}\n", 0)


@pytest.mark.parametrize(
    ("main", "unbuffered"),
    [
        ("print('x' * 10**6)", ""),
        ("print('x')", ""),
        ("print('x')", "1"),
        (HELP, ""),
    ],
    ids=["many", "few", "unbuffered", "help"],
)
def test_a_reader_that_has_gone_ends_the_program_quietly(main, unbuffered):
    process = started(main, PYTHONUNBUFFERED=unbuffered)
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait() == 128 + signal.SIGPIPE


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="of Linux")
def test_an_output_that_cannot_be_written_is_an_error():
    with open("/dev/full", "wb") as full:
        process = started("print('x')", stdout=full)
    _, err = process.communicate()
    assert process.returncode == 1 and err.startswith(b"error: ") and err.count(b"\n") == 1


def test_transformers_shows_no_bars_whatever_was_imported_before():
    """`informin train` asks the Hub for its model before it imports transformers."""
    code = """
import informin.cli.train
from informin.cli.program import exit_code
exit_code(lambda: 0, [])
from transformers.utils.logging import is_progress_bar_enabled
print(is_progress_bar_enabled())
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_informin_logs_and_transformers_is_quiet():
    transformers.utils.logging.set_verbosity_info()
    logging.getLogger("informin").setLevel(logging.ERROR)
    levels = []
    program.exit_code(lambda: levels.append(logging.getLogger("informin.any").isEnabledFor(logging.INFO)), [])
    assert levels == [True] and transformers.utils.logging.get_verbosity() == logging.ERROR
    assert not transformers.utils.logging.is_progress_bar_enabled()


@pytest.mark.usefixtures("handlers_as_before")
@pytest.mark.parametrize(
    "number, line",
    [
        (signal.SIGINT, "Interrupted."),
        (signal.SIGTERM, "Interrupted by SIGTERM."),
        (signal.SIGHUP, "Interrupted by SIGHUP."),
    ],
)
def test_a_signal_raises_an_exception(capsys, monkeypatch, number, line):
    """`with` blocks clean up, and the same signal does not interrupt them again within a second."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(program, "time", SimpleNamespace(monotonic=lambda: clock.now))
    cleaned = []

    def main():
        try:
            signal.raise_signal(number)
        finally:
            clock.now = program.SAME
            signal.raise_signal(number)  # handed on by a launcher
            cleaned.append(number)
            clock.now += 0.1
            with pytest.raises(program.Interrupted):
                signal.raise_signal(number)

    with pytest.raises(SystemExit) as ended:
        program.run_program(main)
    assert ended.value.code == 128 + number and capsys.readouterr().err == f"{line}\n"
    assert cleaned == [number]


@pytest.mark.usefixtures("handlers_as_before")
def test_only_the_first_process_prints_the_signal(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit) as ended:
        program.run_program(lambda: signal.raise_signal(signal.SIGTERM))
    assert ended.value.code == 143 and capsys.readouterr().err == ""


@pytest.mark.usefixtures("handlers_as_before")
def test_a_signal_kills_a_forked_worker():
    program.raise_on_signals()
    if (pid := os.fork()) == 0:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM


@pytest.mark.usefixtures("handlers_as_before")
@pytest.mark.parametrize("number", SIGNALS)
def test_ignored_signals_stay_ignored(number):
    """A shell ignores them for background jobs."""
    signal.signal(number, signal.SIG_IGN)
    with pytest.raises(SystemExit):
        program.run_program(lambda: 0)
    assert signal.getsignal(number) is signal.SIG_IGN


@pytest.mark.parametrize("name, value", [("WORLD_SIZE", ""), ("RANK", " "), ("LOCAL_RANK", ""), ("MASTER_PORT", "")])
def test_variables_of_a_launcher_without_a_value_count_as_unset(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert program.exit_code(lambda: int(name in os.environ), []) == 0


@pytest.mark.parametrize("name, value", [("WORLD_SIZE", "x"), ("WORLD_SIZE", "0"), ("RANK", "1.5"), ("PMI_RANK", "a")])
def test_other_values_of_a_launcher_are_errors(monkeypatch, capsys, name, value):
    monkeypatch.setenv(name, value)
    assert program.exit_code(lambda: pytest.fail("it ran"), []) == 2
    error = capsys.readouterr().err
    assert name in error and error.startswith("error: ") and error.count("\n") == 1


def test_processes_without_an_address_to_meet_at_are_an_error(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert program.exit_code(lambda: pytest.fail("it ran"), []) == 2
    error = capsys.readouterr().err
    assert "MASTER_ADDR" in error and error.startswith("error: ") and error.count("\n") == 1
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert program.exit_code(lambda: 0, []) == 0


def test_a_program_needs_no_standard_streams():
    """No file that it opens gets the number of a stream, and with it what is printed."""
    code = (
        "import os, sys; from informin.cli import program\n"
        "def main():\n"
        "    print('out'); sys.stdout.flush(); print('error', file=sys.stderr); sys.stderr.flush()\n"
        "    assert sys.stdin.read() == ''\n"
        "    return 3 if os.open(os.devnull, os.O_RDONLY) > 2 else 4\n"
        "program.run_program(main)"
    )
    ran = subprocess.run(["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', sys.executable, "-c", code], cwd=ROOT)
    assert ran.returncode == 3


def test_neither_torch_nor_transformers_is_imported():
    code = (
        "import sys, types; package = types.ModuleType('informin'); package.__path__ = ['informin'];"
        "sys.modules['informin'] = package; import informin.training.launcher, informin.texts, informin.files;"
        "assert not {'torch', 'transformers', 'datasets', 'numpy'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
