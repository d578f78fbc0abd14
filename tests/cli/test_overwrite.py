"""One rule for all commands: an output of the same kind is replaced with --overwrite, and nothing else."""

from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from informin import files
from informin.cli import run_command
from informin.files import PREFIX
from tests.cli.test_commands import informin

FOLDERS = ("fit", "distill", "embeddings", "export")


@pytest.fixture
def command(model, texts, tmp_path):
    """Return a function that runs a command that writes the folder `out`."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32))
    reads = [f"--model_name={model}", f"--train_file={texts}", "--device=cpu", "--task=clustering"]
    words = {
        "fit": ["fit", *reads],
        "distill": ["distill", *reads],
        "embeddings": ["fit", "--task=clustering", f"--embeddings={tmp_path / 'x.npy'}"],
        "export": ["export", f"--model_name={model}"],
    }

    def run(name: str, *more: str) -> int:
        return run_command(*words[name], f"--output_dir={tmp_path / 'out'}", *more)

    return run


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", FOLDERS)
def test_an_output_is_replaced_only_if_asked(command, tmp_path, capsys, name):
    out = tmp_path / "out"
    assert command(name) == 0
    added = out / ("report.html" if name == "export" else "notes.txt")
    added.write_text("of an older output")
    before = content(out)
    assert command(name) == 2 and content(out) == before
    assert "--overwrite" in capsys.readouterr().err
    assert command(name, "--overwrite_output_dir") == 0, "the older name"
    assert before.keys() - content(out).keys() == {str(added)}


@pytest.mark.parametrize("name", ["NOTES.md", "data/texts.csv", "README.md", "results/mine.json", ".git/config"])
def test_an_export_never_deletes_files_of_others(command, tmp_path, capsys, name):
    out = tmp_path / "out"
    assert command("export") == 0
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text("mine")
    before = content(out)
    capsys.readouterr()
    assert command("export", "--overwrite") == 2 and content(out) == before
    assert name in capsys.readouterr().err


def test_an_export_with_all_that_commands_add_is_replaced(command, tmp_path):
    out = tmp_path / "out"
    assert command("fit") == 0, "its record, card and report"
    for name in ("onnx/model.onnx", "onnx/model_quantized.onnx", "results/model.json", ".DS_Store"):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text('{"model": "this model"}')
    assert command("export", "--overwrite") == 0
    assert not (out / "fit.json").exists() and not (out / "results").exists()


@pytest.mark.parametrize(
    ("name", "file"), [("fit", "fit.json"), ("embeddings", "adapter.safetensors"), ("export", "modules.json")]
)
def test_a_file_of_another_program_with_such_a_name_is_not_replaced(command, tmp_path, name, file):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / file).write_text('{"slope": 2.5}')
    assert command(name, "--overwrite") == 2
    assert [path.name for path in (tmp_path / "out").iterdir()] == [file]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_of_something_else_is_never_replaced(command, tmp_path, name):
    (tmp_path / "out" / "letters").mkdir(parents=True)
    (tmp_path / "out" / "letters" / "a.txt").write_text("dear")
    before = content(tmp_path / "out")
    assert command(name, "--overwrite") == 2 and content(tmp_path / "out") == before


@pytest.mark.parametrize("more", [[], ["--overwrite"]], ids=["", "overwrite"])
@pytest.mark.parametrize("name", ["fit", "distill", "export"])
def test_a_used_folder_is_found_before_torch_is_imported(tmp_path, name, more):
    """So also a folder of something else that is to be replaced."""
    (tmp_path / "a.txt").touch()
    task = [] if name == "export" else ["--task=search", "--train_file=none.txt"]
    done = informin(name, "--model_name=nowhere/none", f"--output_dir={tmp_path}", *task, *more)
    assert done.returncode == 2 and "in use" in done.stderr and "imported []" in done.stdout


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_another_process_writes_is_found_before_the_work(command, tmp_path, monkeypatch, capsys, name):
    monkeypatch.setattr(files, "FileLock", lambda path, **how: FileLock(path, **how | {"timeout": 0}))
    for module in ("fit", "distill"):
        monkeypatch.setattr(f"informin.frozen.{module}.{module}", None)
    with FileLock(tmp_path / f"{PREFIX}out.lock"):
        assert command(name) == 2
    assert "--output_dir" in capsys.readouterr().err


@pytest.mark.parametrize("name", [".", "modules.json", "modules.json/new"])
def test_a_run_that_cannot_write_there_ends_before_the_data_are_read(model, texts, tmp_path, monkeypatch, capsys, name):
    """A guide would embed all sentences first. The output is a folder of another run, a file, or within a file."""
    (tmp_path / "modules.json").write_text("[]")
    monkeypatch.setattr("informin.cli.train.new_trainer", None)
    words = [f"--model_name={model}", f"--train_file={texts}", f"--output_dir={tmp_path / name}", "--eval_strategy=no"]
    assert run_command("train", *words) == 2
    assert "--output_dir" in capsys.readouterr().err


def test_embed_replaces_its_own_file_only(model, texts, tmp_path):
    words = ["embed", f"--model_name={model}", f"--train_file={texts}", f"--output={tmp_path / 'v.npy'}"]
    assert run_command(*words) == 0
    first = np.load(tmp_path / "v.npy")
    texts.write_text("a cat\na dog\n")
    assert run_command(*words) == 2 and len(np.load(tmp_path / "v.npy")) == len(first)
    assert run_command(*words, "--overwrite") == 0 and len(np.load(tmp_path / "v.npy")) == 2
    np.save(tmp_path / "v.npy", first[:9])  # by another program
    (tmp_path / "v.npy.json").unlink()
    assert run_command(*words, "--overwrite") == 2 and len(np.load(tmp_path / "v.npy")) == 9
