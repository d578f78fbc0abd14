"""What all commands share: help and wrong options without torch, exit codes, and one word per thing."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from informin import program
from informin.cli import COMMANDS, embed
from informin.cli import eval as eval_command
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
PATHS = ("FILE", "FILE.npy", "FOLDER", "PATH", "MODEL", "CHECKPOINT", "RESULTS", "OTHER")  # names of values
RUN = f"""
import sys
from informin.cli import main
try:
    main()
finally:
    print("imported", [name for name in {HEAVY} if name in sys.modules])
"""


def informin(*words: str) -> subprocess.CompletedProcess:
    """Run the command in an interpreter of its own, which also prints the heavy packages that it imported."""
    return subprocess.run([sys.executable, "-c", RUN, *words], cwd=ROOT, capture_output=True, text=True)


def test_help_lists_all_commands():
    done = informin("--help")
    assert done.returncode == 0 and "imported []" in done.stdout
    listed = [line.split()[0] for line in done.stdout.partition("commands:\n")[2].splitlines() if line[:2] == "  "]
    assert listed == list(COMMANDS) and {"train", "fit", "embed", "eval", "index", "search", "export", "push"} <= set(
        listed
    )


@pytest.mark.parametrize("command", LIGHT)
def test_help_does_not_import_torch(command):
    done = informin(command, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: informin {command}") and "imported []" in done.stdout


@pytest.mark.parametrize("command", REQUIRED)
@pytest.mark.parametrize("wrong", [["--no_such_option", "1"], ["a_model"], ["--model_nam", "m"]])
def test_wrong_options_do_not_import_torch(command, wrong):
    """There are no positional arguments, and no abbreviations."""
    done = informin(command, *wrong, *REQUIRED[command])
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert wrong[0] in done.stderr and done.stdout == "imported []\n"


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
    with pytest.raises(SystemExit) as caught:
        eval_command.main(["--model_name", "m", "--tasks", "STSB", *unused])
    error = capsys.readouterr().err
    assert caught.value.code == 2 and error.startswith(f"error: {unused[0]} needs {needed}")


def test_error_of_a_job_is_one_line_with_the_flag(capsys, tmp_path):
    words = ["--model_name", str(tmp_path), "--train_file", "nowhere.txt", "--output", str(tmp_path / "v.npy")]
    assert embed.main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --train_file") and error.count("\n") == 1


def test_help_names_all_poolings():
    text = informin("eval", "--help").stdout
    assert [pooler for pooler in POOLERS if pooler not in text] == []


@pytest.mark.parametrize("command", LIGHT)
def test_options_that_name_files_and_folders_expand_the_home_folder(command, monkeypatch, tmp_path):
    """A shell does not, after `=`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    found = []
    monkeypatch.setattr(program.Parser, "parse_args", lambda self, argv: found.append(self) or self.exit())
    with pytest.raises(SystemExit):
        import_module(f"informin.cli.{command}").main([])
    named = [action for action in found[0]._actions if action.metavar in PATHS]
    assert named and [action.dest for action in named if action.type("~/x") != str(tmp_path / "x")] == []


@pytest.mark.parametrize("command", ["embed", "fit", "index"])
def test_outputs_in_the_home_folder(command, model, texts, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("m").symlink_to(model)
    output = "--output=~/v.npy" if command == "embed" else "--output_dir=~/new"
    words = ["--model_name=~/m", "--train_file=~/texts.txt", output, *(["--task=search"] if command == "fit" else [])]
    assert import_module(f"informin.cli.{command}").main(words) == 0
    assert (tmp_path / ("v.npy" if command == "embed" else "new")).exists() and not Path("~").exists()


def test_one_word_per_thing():
    """A model is --model_name, texts are --train_file, a folder to write is --output_dir and a file --output."""
    texts = {command: informin(command, "--help").stdout for command in LIGHT}
    for command, text in texts.items():
        if command == "search":  # its query, and an index in place of a model
            continue
        assert "positional arguments" not in text and "--model_name" in text, command
    for command in ("fit", "export"):
        assert "--output_dir FOLDER" in texts[command] and "--output " not in texts[command]
    assert "--output FILE.npy" in texts["embed"] and "--output_dir" not in texts["embed"]
    for command in ("fit", "embed"):
        assert "--train_file FILE" in texts[command] and "--text_column" in texts[command]


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
    with pytest.raises(SystemExit) as caught:
        import_module(f"informin.cli.{command}").main(words)
    assert caught.value.code == 2 and capsys.readouterr().err.startswith(f"error: --{option} ")
