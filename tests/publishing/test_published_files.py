"""Only exported files are published, without private data, links or pipes."""

import os
import shutil
from pathlib import Path

import pytest

from informin.evaluation.results import save_results
from informin.publishing.added_results import add_results
from informin.publishing.export import export_folder
from informin.publishing.published import check_export, published_files
from tests.conftest import ROOT, raises_usage
from tests.publishing.export_helpers import EXPORTED, MACHINE, copy, published, results_of, save, snapshot


def test_no_traces_of_the_machine_or_the_data(bert_run, other_seed, bert, sentences_file, tmp_path):
    """Searches all bytes of all published files, including results of `informin eval`."""
    folder = copy(bert_run.folder, tmp_path / "run")
    results = [save(results_of(path, **how), tmp_path) for path, how in ((folder, {}), (bert, {}), (other_seed, {}))]
    add_results(folder, results, [str(other_seed)])
    export_folder(bert_run.trainer.trained, folder, bert_run.record)
    words = [*MACHINE.values(), str(Path.home()), str(ROOT), "pytest-of", str(bert_run.folder), str(bert), "optimizer"]
    sentences = [line for line in sentences_file.read_text().splitlines() if line.count(" ") > 3]
    assert len(sentences) > 20 and len(published(folder)) == len(EXPORTED) + 3
    for name in published(folder):
        content = (folder / name).read_bytes().decode("latin-1")
        assert [word for word in words + sentences if word in content] == [], name
    # Where they would have been found: a checkpoint has the path, the name of a log the host.
    assert str(bert_run.folder) in (folder / "checkpoint-4" / "trainer_state.json").read_text()
    assert [path for path in folder.rglob("runs/*") if MACHINE["HOSTNAME"] in path.name]


def test_only_files_of_the_export_are_published(bert_run, tmp_path):
    folder = copy(bert_run.folder, tmp_path / "run")
    strays = [
        *("training_args.bin", "optimizer.pt", "pytorch_model.bin", "notes.txt", ".env", "trainer_state.json"),
        *("sentences.txt", "README.md~", "model.safetensors.bak", "onnx/trace.log", "runs/a/config.json"),
        *("results/log.txt", "results/other_seeds/log.txt", "checkpoint-6/model.safetensors", "1_Pooling/notes.json"),
    ]
    for name in strays:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    assert published(folder) == EXPORTED


@pytest.mark.parametrize(
    "name",
    [
        *("tiny-cls.json", "other_seeds/tiny-cls.json"),
        *("base-cls.json", "model.json", "other_seeds/seed7.json"),  # of folders that are called base, model and seed7
    ],
)
def test_only_results_of_add_results_are_published(bert_run, tmp_path, name):
    """`informin eval` may have written them there, and they contain the path of the model."""
    folder = copy(bert_run.folder, tmp_path / "run")
    save_results(folder / "results" / name, results_of(folder))
    assert published(folder) == EXPORTED


@pytest.fixture
def private_folder(tmp_path) -> Path:
    """A folder of private files with the names of exported files."""
    folder = tmp_path / "elsewhere"
    for name in ("private.txt", "scores.json", "other_seeds/seed7.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("private")
    return folder


@pytest.mark.parametrize(
    ("name", "to"),
    [
        *((name, "private.txt") for name in ("vocab.txt", "README.md", "config.json", "model.safetensors")),
        *((name, "private.txt") for name in ("onnx/model.onnx", "results/base-cls.json", "1_Pooling/config.json")),
        *((name, "") for name in ("onnx", "results", "results/other_seeds", "1_Pooling", "projection_head")),
        *((name, "gone.txt") for name in ("README.md", "vocab.txt", "results")),
    ],
)
def test_links_are_neither_read_nor_written(bert_run, private_folder, tmp_path, name, to):
    """Links in place of published files or of their folders, including dangling links."""
    folder = copy(bert_run.folder, tmp_path / "run")
    results = save(results_of(folder), tmp_path / "scores")
    link = folder / name
    if link.is_dir():
        shutil.rmtree(link)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(private_folder / to)
    before = snapshot(private_folder), snapshot(folder)
    for use in (
        lambda: check_export(folder),
        lambda: published_files(folder),
        lambda: add_results(folder, [results]),
        lambda: export_folder(bert_run.trainer.trained, folder, bert_run.record),
    ):
        with raises_usage(found=f"{link} is a link", needed="private data", fix="Replace each link with a copy of its"):
            use()
    assert (snapshot(private_folder), snapshot(folder)) == before and link.is_symlink()


@pytest.mark.parametrize("name", ["results/x.json", "README.md", "notes", "onnx/model.onnx"])
def test_pipes_are_refused_before_they_are_read(bert_run, tmp_path, name):
    """Reading a pipe that nobody writes to would block forever."""
    folder = copy(bert_run.folder, tmp_path / "run")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    for use in (
        lambda: check_export(folder),
        lambda: published_files(folder),
        lambda: add_results(folder, [str(tmp_path / "scores.json")]),
        lambda: export_folder(bert_run.trainer.trained, folder, bert_run.record),
    ):
        with raises_usage(found=f"{folder / name} is a pipe, a socket or a device", needed="only files and folders"):
            use()


def test_links_that_are_not_published_are_ignored(bert_run, private_folder, tmp_path):
    """A link with a name that is not published, and a link to the folder itself."""
    folder = copy(bert_run.folder, tmp_path / "run")
    for name in ("notes.txt", "checkpoint-6", "runs/vocab.txt", "results/log.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(private_folder / "private.txt")
    (tmp_path / "link").symlink_to(folder)
    check_export(tmp_path / "link")
    assert published(tmp_path / "link") == EXPORTED
