"""`informin fit`."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
import safetensors.numpy
from sentence_transformers import SentenceTransformer

from informin.cli import run_command
from informin.frozen.adapter import TASKS, LinearAdapter
from tests.conftest import make_sentences
from tests.support import forked

TEXTS = make_sentences(60)


@pytest.fixture
def vectors(tmp_path) -> np.ndarray:
    """Embeddings in the file x.npy."""
    x = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    return x


def words(tmp_path, *others: object) -> list[str]:
    return ["--task", "clustering", "--output_dir", str(tmp_path / "o"), *map(str, others)]


@pytest.mark.parametrize("task", ["clustering", "search"])
def test_adapted_model_is_loaded_as_printed(model, texts, tmp_path, capsys, task):
    argv = ["--task", task, "--model_name", model, "--train_file", texts, "--output_dir", tmp_path / "o"]
    assert run_command("fit", *list(map(str, argv))) == 0
    out = capsys.readouterr().out
    adapted = eval(shown(out, "load"), {"SentenceTransformer": SentenceTransformer})
    original = SentenceTransformer(str(model), device="cpu").encode(TEXTS)
    expected = fitted_on(original, task).transform(original)
    cosines = (adapted.encode(TEXTS, normalize_embeddings=True) * expected).sum(1)
    assert cosines.min() > 1 - 1e-5
    assert ("informin eval --retrieval" in out) == (task == "search") and len(out.splitlines()) <= 12
    assert (tmp_path / "o" / "report.html").is_file() and (tmp_path / "o" / "README.md").is_file()


def shown(out: str, name: str) -> str:
    """Return what is printed beside a name."""
    return next(line.partition(": ")[2] for line in out.splitlines() if line.strip().startswith(f"{name}: "))


def fitted_on(x: np.ndarray, task: str, **options) -> LinearAdapter:
    return LinearAdapter(**TASKS[task], **options).fit(x)


def test_embeddings_alone_give_the_adapter(vectors, tmp_path, capsys):
    """The printed expression applies it to embeddings."""
    argv = ["--embeddings", tmp_path / "x.npy", "--dimension", 4, "--rotation", "bits"]
    assert run_command("fit", *words(tmp_path, *argv)) == 0
    applied = eval(shown(capsys.readouterr().out, "load"), {"safetensors": safetensors, "embeddings": vectors[:1]})[0]
    expected = fitted_on(vectors, "clustering", n_components=4, rotation="bits").transform(vectors)
    np.testing.assert_allclose(applied / np.linalg.norm(applied), expected[0], atol=1e-5)
    np.testing.assert_allclose(np.load(tmp_path / "o" / "documents.npy"), expected, atol=1e-5)


def test_embeddings_of_the_model_save_the_time_to_embed(model, texts, tmp_path):
    np.save(tmp_path / "x.npy", SentenceTransformer(str(model), device="cpu").encode(TEXTS))
    argv = ["--model_name", model, "--train_file", texts, "--embeddings", tmp_path / "x.npy"]
    assert run_command("fit", *words(tmp_path, *argv)) == 0
    original = SentenceTransformer(str(model), device="cpu").encode(TEXTS[:1])
    adapted = SentenceTransformer(str(tmp_path / "o"), device="cpu").encode(TEXTS[:1])
    assert adapted.shape == (1, 32) and np.abs(adapted - original).max() > 0.01


def test_embeddings_in_another_order_are_refused(model, texts, tmp_path, capsys):
    np.save(tmp_path / "x.npy", SentenceTransformer(str(model), device="cpu").encode(TEXTS)[::-1])
    argv = ["--model_name", model, "--train_file", texts, "--embeddings", tmp_path / "x.npy"]
    assert run_command("fit", *words(tmp_path, *argv)) == 2
    assert "--embeddings" in capsys.readouterr().err and not (tmp_path / "o").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_embeddings_that_are_not_finite_are_refused(vectors, tmp_path, capsys, value):
    vectors[7, 3] = value
    np.save(tmp_path / "x.npy", vectors)
    assert run_command("fit", *words(tmp_path, "--embeddings", tmp_path / "x.npy")) == 2
    error = capsys.readouterr().err
    assert "x.npy" in error and error.count("\n") == 1 and not (tmp_path / "o").exists()


def test_used_folder_is_refused_before_the_work(vectors, tmp_path, capsys):
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "mine.txt").write_text("mine")
    assert run_command("fit", *words(tmp_path, "--embeddings", tmp_path / "gone.npy")) == 2
    assert "--output_dir" in capsys.readouterr().err and len(list((tmp_path / "o").iterdir())) == 1


@pytest.mark.parametrize(
    "argv, option",
    [
        (["--task", "search", "--output_dir", "o"], "--model_name"),
        (["--task", "search", "--output_dir", "o", "--model_name", "m"], "--train_file"),
        (["--output_dir", "o", "--embeddings", "x.npy"], "--task"),
        (["--task", "auto", "--output_dir", "o", "--embeddings", "x.npy"], "--task"),
        (["--task", "search", "--output_dir", "o", "--embeddings", "x.npy", "--pooler", "cls"], "--pooler"),
        (["--task", "search", "--output_dir", "o", "--embeddings", "x.npy", "--prompt", ""], "--prompt"),
        (["--task", "search", "--output_dir", "o", "--embeddings", "x.npy", "--text_column", "a"], "--text_column"),
    ],
)
def test_missing_options_are_named(argv, option, capsys):
    assert run_command("fit", *argv) == 2
    error = capsys.readouterr().err
    assert option in error and error.count("\n") == 1


@contextmanager
def opened_when_read(pipe: Path, process: forked.Forked) -> Iterator[None]:
    """Wait until `process` waits for a line of a named pipe, and keep the pipe open, so that it goes on waiting.

    A signal that arrives after Python has last looked for signals and before the system call is seen only after the
    call: an interpreter that is about to read would wait for ever.
    """
    deadline = time.monotonic() + forked.LIMIT
    while True:
        assert process.poll() is None and time.monotonic() < deadline
        try:
            file = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError:  # nobody reads it yet
            time.sleep(0.01)
    try:
        asleep = 0
        while asleep < 10:  # a tenth of a second: it waits in the system call
            assert process.poll() is None and time.monotonic() < deadline
            asleep = asleep + 1 if psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING else 0
            time.sleep(0.01)
        yield
    finally:
        os.close(file)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_leaves_no_files(vectors, tmp_path, number):
    """The signal comes while the texts are read, from a pipe that nobody writes to."""
    os.mkfifo(tmp_path / "pipe.txt")
    code = "from informin.cli import start; start('fit')"
    argv = words(tmp_path, "--embeddings", tmp_path / "x.npy", "--train_file", tmp_path / "pipe.txt")
    process = forked.python(code, argv)
    with opened_when_read(tmp_path / "pipe.txt", process):
        process.send_signal(number)
        assert process.wait(forked.LIMIT) == 128 + number
    error = process.stderr.read()
    assert error.startswith("Interrupted") and error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe.txt", "x.npy"]
