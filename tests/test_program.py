"""The `informin` command and what its subcommands share: help, signals, exit codes, suggestions for typos."""

import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import transformers

import informin
from informin import __version__, errors, interrupts, program
from informin.cli import COMMANDS, analyze, export, push, study, train
from informin.cli import eval as eval_
from informin.errors import InforMinError, PushError, SaveError, UndefinedScoreError, UsageError
from informin.training.command_line import Parser
from tests import forked
from tests.cli.test_run import ENVIRONMENT
from tests.conftest import ROOT, raises_usage
from tools.help_texts import STAMP, help_of

MODULES = {"train": train, "eval": eval_, "study": study, "push": push, "export": export, "analyze": analyze}
RUN_UNSUP = str(ROOT / "run_unsup.py")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="/proc says what a process has loaded")
@pytest.mark.parametrize(
    "command, number, said",
    [
        *((["-m", "informin", name], signal.SIGINT, "Interrupted.\n") for name in MODULES),
        ([RUN_UNSUP], signal.SIGINT, "Interrupted.\n"),
        ([RUN_UNSUP], signal.SIGTERM, "Interrupted by SIGTERM.\n"),
        ([RUN_UNSUP], signal.SIGHUP, "Interrupted by SIGHUP.\n"),
    ],
)
def test_signal_during_imports_prints_one_line(command, number, said):
    process = subprocess.Popen(
        [sys.executable, *command, "--nothing"],
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


@pytest.mark.parametrize("command", COMMANDS)
def test_help_answers_without_importing_torch(command):
    """The saved text is what the subcommand itself prints; run_unsup.py prints that of `informin train`."""
    stamp, _, saved = (program.HELP / f"{command}.txt").read_text(encoding="utf-8").partition("\n")
    if stamp != STAMP:
        pytest.skip(f"the saved text is of {stamp}, and {STAMP} is installed: the subcommand prints its own help")
    assert saved == help_of(command), "save it again: python -m tools.help_texts"
    assert saved.startswith(f"usage: informin {command} ")
    script = [[RUN_UNSUP, "-h"]] if command == "train" else []
    for words in (["-m", "informin", command, "--help"], *script):
        argv = [sys.executable, "-X", "importtime", *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, env=ENVIRONMENT)
        assert done.stdout == saved
        assert not re.search(r"\| +(torch|transformers|numpy)$", done.stderr, re.MULTILINE)


def test_saved_help_of_another_transformers_is_not_printed(monkeypatch, tmp_path, capsys):
    (tmp_path / "eval.txt").write_text("transformers 0.1\nold", encoding="utf-8")
    monkeypatch.setattr(program, "HELP", tmp_path)
    assert program.answer_help("eval", ["--help"]) is None and capsys.readouterr().out == ""
    (tmp_path / "eval.txt").write_text(f"{STAMP}\nnew\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="0"):
        program.answer_help("eval", ["--help"])
    assert capsys.readouterr().out == "new\n"
    assert program.answer_help("eval", ["drift", "--help"]) is None


@pytest.mark.parametrize(
    "words, code, said",
    [
        (["--help"], 0, "usage: informin COMMAND [options]"),
        (["--version"], 0, f"informin {__version__}"),
        ([], 2, "usage: informin COMMAND [options]"),
        (["trian"], 2, "usage: informin COMMAND [options]"),
        (["push", "--no"], 2, "usage: informin push"),
    ],
)
def test_command_lists_its_subcommands(words, code, said):
    done = forked.run(forked.module("informin", words, env=ENVIRONMENT))
    printed = done.stderr if code else done.stdout
    assert done.returncode == code and printed.startswith(said) and "Traceback" not in done.stderr
    assert code == 0 or "informin: error: " in done.stderr or "informin push: error: " in done.stderr


PUBLIC = {
    *("fit", "compare", "embed", "evaluate", "load_model", "upgrade", "LinearAdapter"),
    *("InforMinTrainer", "InforMinTrainingArguments", "BertForInforMinCL", "RobertaForInforMinCL"),
}


def test_names_of_the_package_are_imported_on_first_use():
    code = "import sys, informin; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT)
    code = "from informin import *; print(InforMinTrainer)"
    done = forked.run(forked.python(code, [], env=ENVIRONMENT))
    assert done.stdout == "<class 'trainer_informin.InforMinTrainer'>\n"
    with pytest.raises(AttributeError, match="no attribute 'load'"):
        informin.load  # noqa: B018


def test_the_package_lists_its_public_names():
    """Also after its subpackages were imported, as here."""
    assert {name for name in dir(informin) if not name.startswith("__")} == PUBLIC == {*informin.__all__}
    for name in PUBLIC:
        found = getattr(informin, name)
        assert found.__name__ == name and found.__doc__, name


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
def test_signal_raises_an_exception_after_imports(capsys, number, said):
    """KeyboardInterrupt handlers run, and the message names the innermost interrupted activity."""
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
def test_only_the_first_process_prints_what_was_interrupted(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit) as caught:
        program.run(lambda: signal.raise_signal(signal.SIGTERM))
    assert caught.value.code == 143 and capsys.readouterr().err == ""


@pytest.mark.usefixtures("handlers_as_before")
def test_signal_kills_a_forked_worker():
    interrupts.raise_on_signals()
    if (pid := os.fork()) == 0:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM


@pytest.mark.usefixtures("handlers_as_before")
@pytest.mark.parametrize("number", interrupts.SIGNALS)
def test_ignored_signals_stay_ignored(number):
    """A shell ignores them for background jobs."""
    signal.signal(number, signal.SIG_IGN)
    program.quiet_while_loading()
    with pytest.raises(SystemExit):
        program.run(lambda: 0)
    assert signal.getsignal(number) is signal.SIG_IGN


def fail(error: BaseException):
    """Return a function that raises the error."""

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
            "error: The push failed. Finish with: python -m informin push 'my folder' me/m --branch v2 --overwrite",
        ),
        (KeyboardInterrupt(), 130, "Interrupted."),
    ],
    ids=repr,
)
def test_errors_and_signals_are_printed_in_one_line(capsys, error, code, said):
    assert program.exit_code(fail(error), ["lambda", "b"]) == code
    assert capsys.readouterr().err == f"{said}\n"


@pytest.mark.usefixtures("logging_as_before")
def test_exit_codes(capsys):
    assert [program.exit_code(lambda code=code: code, []) for code in (None, 0, 1, 143)] == [0, 0, 1, 143]
    assert program.exit_code(fail(KeyboardInterrupt()), [], "Nothing is kept.") == 130
    assert capsys.readouterr().err == "Interrupted. Nothing is kept.\n"
    with pytest.raises(ZeroDivisionError):
        program.exit_code(fail(ZeroDivisionError()), [])
    own = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, InforMinError)]
    assert [kind for kind in own if kind.exit_code == 2] == [UsageError] and len(own) > 5


@pytest.mark.usefixtures("logging_as_before")
def test_informin_logs_and_transformers_is_quiet():
    transformers.utils.logging.set_verbosity_info()
    logging.getLogger("informin").setLevel(logging.ERROR)
    seen = []
    program.exit_code(lambda: seen.append(logging.getLogger("informin.any").isEnabledFor(logging.INFO)), [])
    assert seen == [True] and transformers.utils.logging.get_verbosity() == logging.ERROR
    assert not transformers.utils.logging.is_progress_bar_enabled()


@pytest.mark.usefixtures("logging_as_before")
@pytest.mark.parametrize(
    "name, work, arguments",
    [("export", "export", ["a", "b"]), ("push", "push", ["a", "b"]), ("study", "work", ["a.yaml"])],
)
def test_ctrl_c_prints_one_line(name, work, arguments, monkeypatch, capsys):
    monkeypatch.setattr(MODULES[name], work, lambda args: fail(KeyboardInterrupt())())
    assert MODULES[name].main(arguments) == 130
    assert capsys.readouterr() == ("", "Interrupted.\n")


def test_option_names():
    """Those of subcommands are included; positional arguments are not."""
    assert {"seed", "max_sentences", "run"} <= set(analyze.parser().option_names())
    assert {"private", "dry_run"} <= set(push.parser().option_names())
    assert not {"folder", "repo"} & set(push.parser().option_names())


@pytest.mark.parametrize(
    "name, arguments, near",
    [
        ("eval", ["--model_name=x", "--poolers", "cls"], "--pooler"),
        ("analyze", ["curves", "--run=x", "--ouput", "y"], "--output"),
        ("export", ["a", "b", "--int-8"], "--int8"),
        ("push", ["a", "b", "--dry-run"], "--dry_run"),
        ("study", ["a.yaml", "--job=2"], "--jobs"),
        ("train", ["--model_name=x", "--train-files", "y"], "--train_file"),
        ("eval", ["--model_name=x", "--zzz"], None),
    ],
)
def test_unknown_option_suggests_the_nearest(name, arguments, near, capsys):
    try:
        code = MODULES[name].main(arguments)
    except SystemExit as caught:  # argparse's
        code = caught.code
    error = capsys.readouterr().err.splitlines()[-1]
    assert code == 2 and "no such option." in error
    assert (f"Did you mean {near}? See --help." in error) if near else ("Did you mean" not in error)


@pytest.mark.parametrize("word", ["na\udcefve.txt", "--prompt=\udcff", "\ud800"])
def test_words_that_are_not_utf8_are_rejected(word, capsys):
    parser = program.Parser(prog="informin embed")
    parser.add_argument("--prompt")
    parser.add_argument("files", nargs="*")
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["fine", word])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1 and "is not UTF-8. Rename it" in said
    with raises_usage(found=" is not UTF-8", fix="Rename it"):
        Parser().given([f"--train_file={word}"])


def test_closed_streams_become_empty_ones():
    """As under `>&-`: Python sets a closed stream to None, and printing or a model's file must not fail for it."""
    code = "from informin.program import open_closed_streams as o; o(); import sys; print('x'); sys.stderr.write('y')"
    for streams in (">&-", "2>&-", "<&- >&- 2>&-"):
        command = f"{sys.executable} -c {shlex.quote(code)} {streams}"
        assert subprocess.run(["sh", "-c", command], cwd=ROOT).returncode == 0, streams
