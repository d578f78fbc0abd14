"""A batch size that is not positive is an error of each command that embeds, and nothing is written."""

import pytest

from informin.cli import run_command

WORDS = {
    "embed": ["--output=v.npy"],
    "fit": ["--task=search", "--output_dir=out"],
    "distill": ["--task=search", "--output_dir=out"],
    "index": ["--output_dir=out"],
    "index with tokens": ["--output_dir=out", "--rerank"],
    "eval": ["--labels=titles.tsv"],
}


@pytest.mark.parametrize("name, size", [*((name, 0) for name in WORDS), ("embed", -1)])
def test_a_batch_size_is_positive(model, texts, tmp_path, monkeypatch, capsys, name, size):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "titles.tsv").write_text("text\tlabel\n" + "the dog\ta\nthe cat\tb\nthe man\ta\nthe bird\tb\n")
    command = name.split()[0]
    read = [] if command == "eval" else [f"--train_file={texts}"]
    options = [f"--model_name={model}", "--device=cpu", f"--batch_size={size}", *read, *WORDS[name]]
    assert run_command(command, *options) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --batch_size is {size}") and error.count("\n") == 1
    assert not (tmp_path / "v.npy").exists() and not (tmp_path / "out").exists()
