"""`informin embed`."""

import gzip

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from informin.cli import run_command
from tests.conftest import make_sentences
from tests.support import forked


def words(model, file, output, *others: object) -> list[str]:
    return ["--model_name", str(model), "--train_file", str(file), "--output", str(output), *map(str, others)]


def test_embeddings_are_those_of_sentence_transformers(model, texts, tmp_path, capsys):
    output = tmp_path / "v.npy"
    assert run_command("embed", *words(model, texts, output)) == 0
    assert f"{output}: 60 texts, 32 dimensions, float32" in capsys.readouterr().out
    expected = SentenceTransformer(str(model), device="cpu").encode(make_sentences(60))
    np.testing.assert_allclose(np.load(output), expected, atol=1e-5)


def test_column_of_a_packed_file(model, tmp_path):
    with gzip.open(tmp_path / "a.csv.gz", "wt") as file:
        file.write("title,body\nthe dog,runs\n,\nold,house\n")
    output = tmp_path / "v.npy"
    argv = words(model, tmp_path / "a.csv.gz", output, "--text_column", "title,body", "--pooler", "cls")
    assert run_command("embed", *argv) == 0
    assert np.load(output).shape == (2, 32)


def test_a_file_without_texts_is_an_error(model, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("\n \n")
    assert run_command("embed", *words(model, tmp_path / "a.txt", tmp_path / "v.npy")) == 2
    assert capsys.readouterr().err.startswith("error: --train_file") and not (tmp_path / "v.npy").exists()


def test_options_reach_the_model(model, texts, tmp_path):
    for name, options in {"plain": [], "prompt": ["--prompt", "old "], "short": ["--max_seq_length", 4]}.items():
        assert run_command("embed", *words(model, texts, tmp_path / f"{name}.npy", *options)) == 0
    plain, *others = (np.load(tmp_path / f"{name}.npy") for name in ("plain", "prompt", "short"))
    assert all(np.abs(plain - other).max() > 0.01 for other in others)


def test_side_uses_the_prompt_of_queries(model, texts, tmp_path):
    loaded = SentenceTransformer(str(model), device="cpu", prompts={"query": "old "})
    loaded.save_pretrained(str(tmp_path / "prompted"))
    assert run_command("embed", *words(tmp_path / "prompted", texts, tmp_path / "q.npy", "--side", "query")) == 0
    np.testing.assert_allclose(np.load(tmp_path / "q.npy"), loaded.encode_query(make_sentences(60)), atol=1e-5)


@pytest.mark.parametrize(
    "file, output, option", [("gone.txt", "v.npy", "--train_file"), ("texts.txt", "v.bin", "--output")]
)
def test_wrong_files_are_one_line(model, texts, tmp_path, capsys, file, output, option):
    assert run_command("embed", *words(model, texts.with_name(file), tmp_path / output)) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and option in error and error.count("\n") == 1
    assert not (tmp_path / output).exists()


def test_other_embeddings_are_not_overwritten(model, texts, tmp_path, capsys):
    output = tmp_path / "v.npy"
    np.save(output, np.zeros((2, 3), np.float32))
    assert run_command("embed", *words(model, texts, output)) == 2
    assert "v.npy" in capsys.readouterr().err and np.load(output).shape == (2, 3)


def test_two_processes_write_one_file_and_print_once(model, texts, tmp_path):
    output = tmp_path / "v.npy"
    code = "import sys; from informin.cli import start; start('embed', sys.argv[1:])"
    started = forked.group(code, [words(model, texts, output)] * 2)
    finished = [forked.run(process) for process in started]
    assert [process.returncode for process in finished] == [0, 0]
    assert sum(process.stdout.count("60 texts") for process in finished) == 1
    expected = SentenceTransformer(str(model), device="cpu").encode(make_sentences(60))
    np.testing.assert_allclose(np.load(output), expected, atol=1e-5)
