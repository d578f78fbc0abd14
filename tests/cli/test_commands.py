"""What all commands share: help and wrong options without torch, exit codes, and one word per thing."""

import functools
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from informin.cli import COMMANDS, command_app, flags_of, run_command
from informin.model.pooling import POOLERS
from tests.conftest import ROOT

HEAVY = ("torch", "transformers", "sentence_transformers", "datasets", "sklearn", "scipy", "matplotlib", "gradio")
LIGHT = [command for command in COMMANDS if command != "train"]  # its options are those of transformers
REQUIRED = {
    "fit": ["--task", "search", "--output_dir", "o"],
    "embed": ["--model_name", "m", "--train_file", "a.txt", "--output", "v.npy"],
    "eval": ["--model_name", "m"],
    "export": ["--model_name", "m", "--output_dir", "o"],
    "push": ["--model_name", "m", "--hub_model_id", "me/m"],
}
WRONG = [["--no_such_option", "1"], ["a_model"], ["--model_nam", "m"]]
PATHS = (
    "model_name train_file output output_dir embeddings index senteval_dir labels retrieval report compare results"
).split()
RUN = f"""
import contextlib, io, json, os, sys
import informin.cli.commands, informin.cli.frozen_commands, informin.cli.train
from informin.cli import main, run_command

with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    run_command("push", "--help")  # imports what formats texts
for line in sys.stdin:
    words, files, variables = json.loads(line)
    if pid := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        continue
    for stream, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), stream)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        print("imported", [name for name in {HEAVY} if name in sys.modules], flush=True)
        os._exit(end.code)  # the end of an interpreter takes longer than a command
"""


@functools.cache
def interpreter() -> subprocess.Popen:
    """Start an interpreter that imports the commands and forks for each line that it reads."""
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-c", RUN], cwd=ROOT, text=True, **pipes)


def informin(*words: str) -> subprocess.CompletedProcess:
    """Run the command in a process of its own, which also prints the heavy packages that it imported."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("out", "err")]
        process = interpreter()
        print(json.dumps([words, [*map(str, files)], dict(os.environ)]), file=process.stdin, flush=True)
        code = int(process.stdout.readline())
        return subprocess.CompletedProcess(words, code, *(file.read_text() for file in files))


@functools.cache
def help_of(command: str) -> subprocess.CompletedProcess:
    return informin(command, "--help")


def test_help_lists_all_commands():
    done = informin("--help")
    assert done.returncode == 0 and "imported []" in done.stdout
    lines = done.stdout.partition("Commands")[2].splitlines()
    listed = [line.split()[0] for line in lines if line[:1] == " " and line[1:2].isalpha()]
    assert listed == list(COMMANDS)
    assert {"train", "fit", "embed", "eval", "index", "search", "export", "push"} <= {*listed}


@pytest.mark.parametrize("command", LIGHT)
def test_help_does_not_import_torch(command):
    done = help_of(command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Usage: informin {command}") and "imported []" in done.stdout


@pytest.mark.parametrize(
    "command, wrong", [*(("fit", words) for words in WRONG), *zip(list(REQUIRED)[1:], itertools.cycle(WRONG))]
)
def test_wrong_options_do_not_import_torch(command, wrong):
    """There are no positional arguments, and no abbreviations."""
    done = informin(command, *wrong, *REQUIRED[command])
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert wrong[0] in done.stderr and done.stdout == "imported []\n"


@pytest.mark.parametrize(
    "words",
    [
        ["embed", "--train", "x"],
        ["embed", "--batch_size", "many\n"],
        ["embed", "--model_name"],
        ["embed", "--side=doc"],
        ["eval", "--bf16=x"],
        ["eval", "--whitening=x"],
        ["eval", "--tasks", "--seeds"],
    ],
)
def test_wrong_options_end_with_one_line(capsys, words):
    assert run_command(*words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1


@pytest.mark.parametrize("words", [["compare"], ["Fit"], []])
def test_unknown_commands(words):
    done = informin(*words)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("unused", "needed"),
    [
        (["--bm25"], "--retrieval"),
        (["--language", "german"], "--retrieval"),
        (["--query_prompt", "q: "], "--retrieval"),
        (["--document_prompt", ""], "--retrieval"),
        (["--label_column", "tag"], "--labels"),
        (["--text_column", "title"], "--labels"),
    ],
)
def test_options_of_eval_without_effect_are_errors(capsys, unused, needed):
    assert run_command("eval", "--model_name", "m", "--tasks", "STSB", *unused) == 2
    assert capsys.readouterr().err.startswith(f"error: {unused[0]} needs {needed}")


def test_error_of_a_job_is_one_line_with_the_flag(capsys, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    words = ["--model_name", str(tmp_path), "--train_file", "nowhere.txt", "--output", str(tmp_path / "v.npy")]
    assert run_command("embed", *words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --train_file") and error.count("\n") == 1


@pytest.mark.parametrize("command", LIGHT)
def test_every_option_has_a_help_text(command):
    """A docstring with a wrong indentation is shown as one paragraph, without the options."""
    wide = Console(file=io.StringIO(), width=200)  # the names of an option are in one line
    command_app().help_print([command], console=wide)
    without = r"^[ *]+(--\w+)(?: --\w+)*(?: [A-Z]+)?(?:\.\.\.)? *(?:\[.*)?$"
    assert re.findall(without, wide.file.getvalue(), re.MULTILINE) == []


def test_help_names_all_poolings():
    text = informin("eval", "--help").stdout
    assert [pooler for pooler in POOLERS if pooler not in text] == []


@pytest.mark.parametrize("command", LIGHT)
def test_options_that_name_files_and_folders_expand_the_home_folder(command, monkeypatch, tmp_path):
    """A shell does not, after `=`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    named = [name for name in flags_of(command) if name in PATHS]
    others = {"fit": ["--task=search"], "distill": ["--task=search"], "push": ["--hub_model_id=me/m"]}.get(command, [])
    words = [command, *others, *(f"--{name}=~/x" for name in named)]
    _, given, _ = command_app().parse_args(words, exit_on_error=False)
    found = str(given.arguments)
    assert named and found.count(f"'{tmp_path / 'x'}'") == len(named) and "~" not in found


@pytest.mark.parametrize("option", ["--output=", "--embeddings=", "--train_file="])
def test_an_empty_path_is_an_error(option, capsys):
    """As of a variable of the shell that is not set: it would be no output, or all texts in the current folder."""
    assert run_command("duplicates", "--model_name=m", "--train_file=nowhere.txt", option) == 2
    error = capsys.readouterr().err
    assert option.rstrip("=") in error and "empty" in error and error.count("\n") == 1


@pytest.mark.parametrize("command", ["embed", "fit", "index"])
def test_outputs_in_the_home_folder(command, model, texts, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("m").symlink_to(model)
    output = "--output=~/v.npy" if command == "embed" else "--output_dir=~/new"
    words = ["--model_name=~/m", "--train_file=~/texts.txt", output, *(["--task=search"] if command == "fit" else [])]
    assert run_command(command, *words) == 0
    assert (tmp_path / ("v.npy" if command == "embed" else "new")).exists() and not Path("~").exists()


def test_one_word_per_thing():
    """A model is --model_name, texts are --train_file, a folder to write is --output_dir and a file --output."""
    texts = {command: help_of(command).stdout for command in LIGHT}
    for command, text in texts.items():
        assert "--model_name" in text and ("Arguments" in text) == (command == "search"), command  # its query
    for command in ("fit", "export"):
        assert "--output_dir " in texts[command] and "--output " not in texts[command]
    assert "--output " in texts["embed"] and "--output_dir " not in texts["embed"]
    for command in ("fit", "embed"):
        assert "--train_file " in texts[command] and "--text_column " in texts[command]


@pytest.mark.parametrize(
    "command, words, option",
    [
        ("search", ["--index=i", "--k=3"], "k"),
        ("search", ["--index=i", "--format=json"], "format"),
        ("search", ["--index=i", "--port=7000", "words"], "port"),
        ("search", ["--index=i", "--host=0.0.0.0", "words"], "host"),
        ("eval", ["--report=r", "--labels=l"], "labels"),
        ("eval", ["--report=r", "--batch_size=8"], "batch_size"),
        ("eval", ["--report=r", "--pooler=cls"], "pooler"),
        ("push", ["--model_name=m", "--hub_model_id=me/m", "--trust_remote_code"], "trust_remote_code"),
        ("export", ["--model_name=m", "--output_dir=o", "--int8"], "int8"),
        ("fit", ["--task=search", "--embeddings=e", "--output_dir=o", "--device=cpu"], "device"),
    ],
)
def test_options_without_effect_are_errors(command, words, option, capsys):
    assert run_command(command, *words) == 2
    assert capsys.readouterr().err.startswith(f"error: --{option} ")
