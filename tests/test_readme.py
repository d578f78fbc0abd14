"""README's blocks run from top to bottom in one folder, with small local models instead of those of the Hub."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT, make_sentences, save_bert
from tests.support import forked
from tests.support.senteval_data import write_senteval
from trainer_informin import InforMinTrainer

SHARE = 0.02  # of SentEval's data
FEWER_PAIRS = "import pytest; from tests.support.senteval_data import small_counts; "
FEWER_PAIRS += f"small_counts(pytest.MonkeyPatch(), {SHARE})"
NOT_RUN = {  # commands of README that a test cannot run, by their beginning
    "pip install": "downloads packages",
    "make ": "installs packages, and runs these tests",
}
LEFT_OUT = ("--onnx",)  # its file takes ten seconds; tests/publishing/test_onnx.py runs the command with it
SHORT = "--max_steps 2 --eval_steps 1 --save_steps 1 --use_cpu true --eval_pairs examples/quickstart/pairs.tsv"


def blocks() -> list[tuple[str, str]]:
    """Return the language and the text of each block."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^```(bash|python)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def clone(tmp_path, monkeypatch) -> Path:
    """A folder with the files that README names, with fewer texts."""
    for name in ("informin/general_sentences.txt", "examples/quickstart/pairs.tsv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "informin/general_sentences.txt").write_text("\n".join(make_sentences(200)) + "\n")
    write_senteval(tmp_path / "SENTEVAL", SHARE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    return tmp_path


def run_command(words: list[str], folder: Path) -> None:
    """Run a command of README in a forked process, and check that it succeeds."""
    if words[:2] == ["accelerate", "launch"]:
        process = forked.script(
            words[2], [*words[3:], *SHORT.split(), "--train_file", "informin/general_sentences.txt"], cwd=folder
        )
    else:
        assert words[0] == "informin", words
        short = ["--max_steps", "2", "--use_cpu", "true"] if words[1] == "train" else []
        process = forked.module("informin", [*words[1:], *short], before=FEWER_PAIRS, cwd=folder)
    output, errors = process.communicate()
    assert process.returncode == 0, f"{shlex.join(words)}\n{output}\n{errors}"


def test_blocks_of_the_readme_run_in_order(clone, st_mean, monkeypatch, tmp_path_factory):
    train = InforMinTrainer.train

    def train_shortly(trainer):
        trainer.args.max_steps = 2
        return train(trainer)

    monkeypatch.setattr(InforMinTrainer, "train", train_shortly)
    bert = save_bert(tmp_path_factory.mktemp("models") / "bert", num_hidden_layers=1)
    names = {"bert-base-uncased": str(bert), "sentence-transformers/all-MiniLM-L6-v2": str(st_mean)}
    namespace: dict[str, object] = {}
    ran = 0
    for language, block in blocks():
        for name, local in names.items():
            block = block.replace(name, local)
        if language == "python":
            exec(compile(block, "README.md", "exec"), namespace)
            ran += 1
            continue
        for line in block.splitlines():
            words = [word for word in shlex.split(line, comments=True) if word not in LEFT_OUT]
            is_upload = words[1:2] == ["push"] and "--dry_run" not in words
            if words and not is_upload and not line.startswith(tuple(NOT_RUN)):
                run_command(words, clone)
                ran += 1
    assert ran > 10
    assert namespace["embeddings"].shape[0] == 2
