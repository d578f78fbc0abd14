"""`informin.embed`: embeddings in memory and in a file."""

import logging
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from informin.cli import run_command
from informin.evaluation.evaluate import evaluate
from informin.model.embedding import embed
from informin.model.open import load_model
from informin.texts import read_texts
from tests.conftest import make_sentences, raises_usage, save_letters, save_sentence_transformer

TEXTS = make_sentences(40)
PROMPTS = {"query": "the ", "document": "a young "}


@pytest.fixture
def static(tmp_path) -> Path:
    """A model without a transformer, which does not normalize."""
    return save_letters(tmp_path / "static")


@pytest.fixture
def prompted(bert, tmp_path) -> Path:
    """A BERT with prompts for queries and documents."""
    return save_sentence_transformer(tmp_path / "prompted", bert, prompts=PROMPTS)


@pytest.mark.parametrize("kind", ["static", "st_mean"])
def test_embeddings_are_those_of_the_model(request, kind):
    folder = request.getfixturevalue(kind)
    vectors = embed(folder, iter(TEXTS), device="cpu")
    model = SentenceTransformer(str(folder), device="cpu")
    assert type(vectors) is np.ndarray and vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, model.encode(TEXTS), atol=1e-5)
    np.testing.assert_allclose(embed(model, TEXTS), vectors, atol=1e-5)
    assert embed(folder, [], device="cpu").shape == (0, vectors.shape[1])


def test_sides_have_their_prompts(prompted):
    for side, text in PROMPTS.items():
        joined = embed(prompted, [text + one for one in TEXTS[:9]], prompt="", device="cpu")
        np.testing.assert_allclose(embed(prompted, TEXTS[:9], side=side, device="cpu"), joined, atol=1e-5)
        np.testing.assert_allclose(embed(prompted, TEXTS[:9], prompt=text, device="cpu"), joined, atol=1e-5)


def test_a_file_is_written_and_taken_again(st_mean, tmp_path):
    model = SentenceTransformer(str(st_mean), device="cpu")
    vectors = embed(model, TEXTS, tmp_path / "x.npy")
    assert isinstance(vectors, np.memmap)
    np.testing.assert_allclose(vectors, embed(model, TEXTS), atol=1e-5)
    before = (tmp_path / "x.npy").stat().st_mtime_ns
    np.testing.assert_array_equal(embed(model, TEXTS, output=tmp_path / "x.npy"), vectors)
    assert (tmp_path / "x.npy").stat().st_mtime_ns == before
    with raises_usage():
        embed(model, TEXTS[:5], output=tmp_path / "x.npy")
    with raises_usage(option="output"):
        embed(model, TEXTS, output=tmp_path / "x.txt")


def test_texts_beside_the_output_stay_and_its_record_is_no_text(static, tmp_path):
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "v.jsonl").write_text('{"text": "the dog"}\n{"text": "a cat"}\n')
    (folder / "v.json").write_text("mine")
    for _ in range(2):
        assert len(embed(static, read_texts(folder), folder / "v.npy", device="cpu")) == 2
    assert (folder / "v.json").read_text() == "mine"


def test_truncated_texts_are_counted_once(st_mean, caplog):
    with caplog.at_level(logging.INFO, "informin"):
        embed(st_mean, ["a cat", " ".join(TEXTS[:9])], device="cpu", max_seq_length=16)
        assert [message for message in caplog.messages if "truncated" in message] == [
            "1 text of 2 is truncated to 16 tokens."
        ]


def test_truncated_texts_of_static_embeddings_are_counted(tmp_path, caplog):
    """Their class has no maximum length of its own, and the record of an evaluation has that of the tokenizer."""
    model = load_model(save_letters(tmp_path / "letters"), max_seq_length=3, device="cpu")
    with caplog.at_level(logging.INFO, "informin"):
        embed(model, ["abc", "abcd"])
    assert "1 text of 2 is truncated to 3 tokens." in caplog.messages
    labels = tmp_path / "labels.tsv"
    labels.write_text("text\tlabel\na\t0\nb\t0\nc\t1\n")
    assert evaluate(model, labels=labels).rows[0].max_seq_length == 3


@pytest.mark.parametrize("side", [None, "query", "document"])
def test_the_stored_prompt_counts_for_the_truncation(prompted, side, caplog):
    model = SentenceTransformer(str(prompted), device="cpu", default_prompt_name="query")
    model.max_seq_length = 5
    for prompt, number in {None: 1, "": 0}.items():
        caplog.clear()
        with caplog.at_level(logging.INFO, "informin"):
            embed(model, ["the old dog", "cat"], side=side, prompt=prompt)
        assert len([message for message in caplog.messages if "truncated" in message]) == number


def test_mistakes_are_errors(static):
    with raises_usage(option="texts"):
        embed(static, "one text")
    with pytest.raises(TypeError, match="lenght"):
        embed(static, TEXTS, lenght=3)
    for option, value in {"side": "doc", "batch_size": 0, "trust_remote_code": "false", "bf16": "no"}.items():
        with raises_usage(option=option):
            embed(static, TEXTS, device="cpu", **{option: value})
    with raises_usage(option="overwrite"):
        embed(static, TEXTS, static / "x.npy", overwrite="false")


def test_a_leading_tilde_is_the_home_folder(static, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    embed("~/static", TEXTS, "~/x.npy", device="cpu")
    assert (tmp_path / "x.npy").is_file() and not (tmp_path / "~").exists()


def test_a_truncated_model_has_the_width_that_it_says(st_mean, tmp_path, capsys):
    """truncate_dim is saved with a model. No vector depends on the texts beside it."""
    model = SentenceTransformer(str(st_mean), device="cpu", truncate_dim=8)
    model.save_pretrained(str(tmp_path / "cut"), create_model_card=False)
    vectors = embed(tmp_path / "cut", TEXTS, device="cpu")
    assert vectors.shape == (len(TEXTS), 8)
    np.testing.assert_allclose(vectors, model.encode(TEXTS), atol=1e-5)
    np.testing.assert_allclose(embed(tmp_path / "cut", TEXTS[3:4], device="cpu"), vectors[3:4], atol=1e-5)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    words = [f"--model_name={tmp_path / 'cut'}", f"--train_file={tmp_path / 'texts.txt'}", "--device=cpu"]
    assert run_command("embed", *[*words, f"--output={tmp_path / 'v.npy'}"]) == 0
    assert "8 dimensions" in capsys.readouterr().out
