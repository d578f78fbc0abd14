"""Vectors of the search page: from `informin embed`, or cached."""

import os
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants

from informin.cli.embed import main as embed
from informin.demo.load import find_report, load_search, short_names
from informin.labeled_sentences import Sentences, load_labeled_sentences
from informin.models.open_model import load_model
from tests.conftest import raises_usage
from tests.demo.helpers import TableEncoder, save

TABLE = {"a": [1.0, 0.0], "b": [0.0, 2.0], "": [1.0, 1.0]}
LETTERS = Sentences(["a", "b", "a"])


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_vectors_are_cached(home):
    """A second page with the same sentences and encoder embeds nothing."""
    first, second = TableEncoder("x", TABLE), TableEncoder("x", TABLE)
    expected = load_search([first], LETTERS).vectors[0]
    assert first.embedded == ["a", "b", "a"] and expected.tolist() == [[1, 0], [0, 1]]
    assert np.array_equal(load_search([second], LETTERS).vectors[0], expected) and second.embedded == []
    load_search([second], Sentences(["a", "b"]))
    assert second.embedded == ["a", "b"]
    other = TableEncoder("y", TABLE)
    load_search([other], LETTERS)
    assert other.embedded == ["a", "b", "a"]
    assert len(list((home / "informin-cl" / "embeddings").glob("*.npy"))) == 3


@pytest.mark.usefixtures("logging_as_before")
def test_vectors_of_informin_embed(bert, sentences_file, tmp_path, home, monkeypatch):
    file = tmp_path / "vectors.npy"
    options = ["--pooler", "mean", "--device", "cpu"]
    assert embed(["--model_name", str(bert), "--train_file", str(sentences_file), "--output", str(file), *options]) == 0
    encoder = load_model(str(bert), ("mean",), device="cpu")
    monkeypatch.setattr(type(encoder), "__call__", lambda *_: pytest.fail("embedded again"))
    search = load_search([encoder], load_labeled_sentences(sentences_file), [file])
    vectors = np.load(file)
    assert np.allclose(search.vectors[0], vectors / np.linalg.norm(vectors, axis=1, keepdims=True), atol=1e-6)
    assert not home.exists()


def test_wrong_embeddings(tmp_path):
    encoder, file = TableEncoder("x", TABLE), tmp_path / "v.npy"
    load_search([encoder], LETTERS, [file])
    with raises_usage(found="v.npy exists and contains other embeddings"):
        load_search([encoder], Sentences(["a"]), [file])
    with raises_usage("embeddings", found="names 1 file for 2 models", needed="one file per model"):
        load_search([encoder, encoder], LETTERS, [file])


def test_names_on_the_page():
    assert short_names(["outputs/a", "me/b"]) == ["a", "b"]
    assert short_names(["outputs/a/", "me/a"]) == ["outputs/a/", "me/a"]
    assert short_names(["/"]) == ["/"]


def test_reports(bert, tmp_path):
    assert find_report(str(bert)) is None
    (tmp_path / "report.html").write_text("<p>é</p>", encoding="utf-8")
    assert find_report(str(tmp_path)) == "<p>é</p>"


def test_reports_that_are_no_reports(tmp_path, monkeypatch):
    """A report is part of the page: it must be in the model's folder, and as small as a report."""
    (tmp_path / "model").mkdir()
    report = tmp_path / "model" / "report.html"
    report.mkdir()
    assert find_report(str(report.parent)) is None
    report.rmdir()
    os.mkfifo(report)
    assert find_report(str(report.parent)) is None
    report.unlink()
    save(tmp_path / "secret", "secret")
    report.symlink_to(tmp_path / "secret")
    with raises_usage("model_name", found="report.html is a link to a file outside of the folder"):
        find_report(str(report.parent))
    report.unlink()
    report.write_text("x" * 11 * 2**20)
    with raises_usage(found="report.html has 11,534,336 bytes", needed="up to 10,485,760", fix="informin report"):
        find_report(str(report.parent))
    report.write_text("x")
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "no")))
    with raises_usage(found="report.html cannot be read"):
        find_report(str(report.parent))


def test_queries_have_their_own_prompt(home):
    class Prompted(TableEncoder):
        side_prompts, prompt = ("query: ", "passage: "), "passage: "

        def for_side(self, side: str, prompt: str) -> "Prompted":
            other = Prompted(f"{side} side", self.table)
            other.prompt = prompt
            return other

    encoder = Prompted("m", TABLE)
    assert load_search([encoder], LETTERS).models[0].encoder.prompt == "query: "
    encoder.prompt = "mine: "
    assert load_search([encoder], LETTERS).models[0].encoder is encoder
