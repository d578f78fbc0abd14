"""Files and columns are checked before torch is imported."""

import subprocess
import sys

import numpy as np
import pytest

from informin.cli import main
from informin.cli.early import check_files
from tests.cli.test_run import ENVIRONMENT

LOADED = "import sys; from informin.cli import start\ntry: start({!r}, {!r})\nfinally: print('torch' in sys.modules)"
TRAIN = ["--model_name", "no/model", "--output_dir", "o", "--train_file"]
WRONG = [
    *(("train", [*TRAIN, name]) for name in ("gone.txt", "a.csv", "a.jsonl")),
    ("fit", ["--embeddings", "gone.npy", "--output_dir", "o"]),
    ("fit", [*TRAIN, "a.csv", "--text_column=title"]),
    ("embed", ["--model_name", "no/model", "--train_file", "a.csv", "--text_column", "id,title", "--output", "x.npy"]),
    ("compare", ["no/model", "--train_file", "a.csv"]),
    ("search", ["no/model", "--train_file", "a.csv"]),
    ("eval", ["--model_name", "no/model", "--labels", "a.csv", "--text_column", "id"]),
]
SAID = {"gone.txt": "does not exist", "gone.npy": "does not exist", "--text_column=title": "no column 'title'"}
SAID |= {"id,title": "no column 'title'", "id": "no column label"}


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("id,body\n1,one\n2,two\n")
    (tmp_path / "a.jsonl").write_text('{"id": 1, "body": "one"}\n')
    np.save("x.npy", np.eye(3))


@pytest.mark.parametrize("command, words", WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_mistakes_are_named(command, words, capsys):
    with pytest.raises(SystemExit) as ended:
        check_files(command, words)
    said = next((text for word, text in SAID.items() if word in words), "has no column 'text'")
    printed = capsys.readouterr().err
    assert ended.value.code == 2 and printed.startswith("error: ") and said in printed
    assert "`" not in printed  # options are flags


@pytest.mark.parametrize("command, words", [WRONG[1], WRONG[-1]], ids=["train", "eval"])
def test_torch_is_not_imported(command, words, tmp_path):
    code = LOADED.format(command, words)
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "False\n") and "has no column" in done.stderr


def test_everything_else_is_left_to_the_command(capsys):
    check_files("train", [*TRAIN, "gone.txt", "--config", "run.yaml"])  # the file may name the column
    check_files("fit", ["--embeddings", "x.npy", "--train_file", "a.csv", "--text_column", "body", "--unknown", "1"])
    check_files("embed", ["--train_file"])
    check_files("eval", ["--labels", "a.csv", "--text_column", "body", "--label_column", "id"])
    check_files("study", ["gone.yaml"])
    check_files("search", ["--text_column", "body", "--train_file", "a.csv", "org/model", "other/model"])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("word, near", [("trian", "Did you mean train?"), ("Embed", "embed?"), ("x", "See informin")])
def test_unknown_commands_get_a_suggestion(word, near, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["informin", word])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"error: no command '{word}'. " in (printed := capsys.readouterr().err) and near in printed
