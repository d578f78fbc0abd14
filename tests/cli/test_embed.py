"""`informin embed`."""

import gzip
import os
import re
import signal

import numpy as np
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SentenceTransformer

from informin.cli import run_command
from informin.model.embedding import embed
from tests.conftest import ROOT, make_sentences
from tests.support import forked

EMBED = "from informin.cli import start; start('embed')"
IN_SMALL_CHUNKS = "from informin.model import embedding; embedding.RECORDED_AT_ONCE = 8"
KILLED_AFTER_ONE = f"""{IN_SMALL_CHUNKS}
import os, signal
write = embedding._write_chunk
embedding._write_chunk = lambda *args: (write(*args), os.kill(os.getpid(), signal.SIGKILL))
"""


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
    started = forked.group(EMBED, [words(model, texts, output)] * 2)
    finished = [forked.run(process) for process in started]
    assert [process.returncode for process in finished] == [0, 0]
    assert sum(process.stdout.count("60 texts") for process in finished) == 1
    expected = SentenceTransformer(str(model), device="cpu").encode(make_sentences(60))
    np.testing.assert_allclose(np.load(output), expected, atol=1e-5)


def test_shards_of_two_processes_are_one_run_also_after_a_kill(model, texts, tmp_path):
    outputs = [tmp_path / "1.npy", tmp_path / "2.npy"]
    arguments = [words(model, texts, path, "--shard", f"{path.stem}/2") for path in outputs]
    for before, ends in ((KILLED_AFTER_ONE, -signal.SIGKILL), (IN_SMALL_CHUNKS, 0)):
        processes = [forked.python(f"{before}\n{EMBED}", own) for own in arguments]
        assert [forked.run(process).returncode for process in processes] == [ends] * 2
        assert [path.exists() for path in outputs] == [ends == 0] * 2
    assert run_command("embed", *words(model, texts, tmp_path / "whole.npy")) == 0
    shards = [np.load(path) for path in outputs]
    np.testing.assert_allclose(np.concatenate(shards), np.load(tmp_path / "whole.npy"), atol=1e-6)
    assert not list(tmp_path.glob(".*.embedding"))


@pytest.mark.parametrize("shard", ["5/4", "0/4", "a", "1/0", "1/2/3", "61/61"])
def test_a_shard_that_does_not_exist_is_an_error(model, texts, tmp_path, capsys, shard):
    assert run_command("embed", *words(model, texts, tmp_path / "v.npy", "--shard", shard)) == 2
    assert capsys.readouterr().err.startswith("error: --shard") and not (tmp_path / "v.npy").exists()


def test_a_wrong_shard_is_refused_before_the_model_is_looked_for(texts, tmp_path, capsys):
    assert run_command("embed", *words(tmp_path / "gone", texts, tmp_path / "v.npy", "--shard", "5/4")) == 2
    assert capsys.readouterr().err.startswith("error: --shard")


def test_datasets_with_the_code_of_the_page(model, texts, tmp_path):
    """The processes are forked, because new ones would import everything again."""
    page = (ROOT / "docs/databases.md").read_text(encoding="utf-8")
    block = next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "num_proc" in block)
    (tmp_path / "texts.csv").write_text("id,text\n" + "".join(f"{i},{t}\n" for i, t in enumerate(make_sentences(60))))
    code = block.replace("MODEL", str(model)).replace("spawn", "fork").replace("8192", "16")
    environment = os.environ | {"HF_DATASETS_CACHE": str(tmp_path / "cache")}
    finished = forked.run(forked.python(code, [], cwd=tmp_path, env=environment))
    assert finished.returncode == 0, finished.stderr
    table = pq.read_table(tmp_path / "vectors.parquet").to_pydict()
    assert table["id"] == list(range(60))
    np.testing.assert_allclose(table["vector"], embed(model, make_sentences(60), device="cpu"), atol=1e-6)
