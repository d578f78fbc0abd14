"""`informin.embed` and `informin.load_model`."""

import numpy as np
import pytest

import informin
from informin.cli import embed as command
from tests.conftest import raises_usage
from tests.jobs.conftest import TEXTS, embedded


@pytest.mark.parametrize("kind", ["words", "sentences"])
def test_embeddings_are_those_of_the_command(request, kind, file, tmp_path, capfd):
    model = request.getfixturevalue(kind)
    options = [f"--model_name={model}", f"--train_file={file}", "--device=cpu"]
    assert command.main([*options, f"--output={tmp_path / 'a.npy'}"]) == 0
    capfd.readouterr()
    vectors = informin.embed(model, iter(TEXTS), device="cpu")
    assert type(vectors) is np.ndarray and vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, np.load(tmp_path / "a.npy"))
    np.testing.assert_array_equal(vectors, informin.embed(informin.load_model(model, device="cpu"), TEXTS))


def test_a_file_is_written_and_taken_again(words, tmp_path, monkeypatch):
    model = informin.load_model(words, device="cpu")
    vectors = informin.embed(model, TEXTS, output=tmp_path / "x.npy")
    assert isinstance(vectors, np.memmap) and (tmp_path / "x.npy.json").exists()
    np.testing.assert_array_equal(vectors, embedded(model))
    monkeypatch.setattr(type(model), "__call__", lambda *_: pytest.fail("embedded again"))
    np.testing.assert_array_equal(informin.embed(model, TEXTS, output=tmp_path / "x.npy"), vectors)
    with raises_usage(found="exists and contains other embeddings"):
        informin.embed(model, TEXTS[:5], output=tmp_path / "x.npy")
    with raises_usage(option="output", needed="a name ending in .npy"):
        informin.embed(model, TEXTS, output=tmp_path / "x.txt")


def test_prompts_and_lengths_are_options(sentences):
    plain = informin.load_model(sentences, device="cpu", prompt="")
    query = informin.load_model(sentences, device="cpu", prompt_name="query")
    assert query.prompt and not plain.prompt
    joined = informin.embed(plain, [query.prompt + text for text in TEXTS[:9]])
    np.testing.assert_allclose(informin.embed(query, TEXTS[:9]), joined, atol=1e-6)
    assert informin.load_model(sentences, device="cpu", max_length=7, batch_size=3).length == 7
    with raises_usage(option="prompt_name", found="cannot be combined with `prompt`"):
        informin.load_model(sentences, prompt_name="query", prompt="a")


def test_mistakes_are_errors(words, sentences):
    with raises_usage(option="texts", found="is one text"):
        informin.embed(words, "one text")
    with raises_usage(option="model", found="is a list"):
        informin.embed([words], TEXTS)
    with raises_usage(option="pooler", found="is cls mean"):
        informin.embed(sentences, TEXTS, pooler=["cls", "mean"], device="cpu")
    with pytest.raises(TypeError, match="lenght"):
        informin.load_model(words, lenght=3)


def test_no_texts_are_an_empty_array(words, sentences):
    assert informin.embed(words, [], device="cpu").shape == (0, 16)
    assert informin.embed(sentences, [], device="cpu").shape == (0, 32)


LONG = " ".join(TEXTS[:9])
TOLD = "1 text is longer than 16 tokens, and truncated."


def test_truncated_texts_are_told(sentences, tmp_path, caplog):
    model = informin.load_model(sentences, device="cpu", max_length=16)
    with caplog.at_level("WARNING"):
        informin.embed(model, ["a cat", LONG])
        assert caplog.messages == [TOLD]
        informin.embed(informin.load_model(sentences, device="cpu", max_length=16), [LONG], output=tmp_path / "a.npy")
        assert caplog.messages == [TOLD, TOLD]
        informin.embed(sentences, ["a cat", LONG], device="cpu", max_length=16, windows=True)
        informin.embed(sentences, ["a cat"], device="cpu")
        assert caplog.messages == [TOLD, TOLD]


def test_windows_read_the_whole_text(sentences, tmp_path):
    model = informin.load_model(sentences, device="cpu", max_length=16)
    cut, whole = informin.embed(model, [LONG, "a cat"]), informin.embed(model, [LONG, "a cat"], windows=True)
    assert not np.allclose(cut[0], whole[0], atol=1e-3)
    np.testing.assert_allclose(cut[1], whole[1], atol=1e-6)
    np.testing.assert_array_equal(
        informin.embed(model, [LONG, "a cat"], windows=True, output=tmp_path / "x.npy"), whole
    )
    with raises_usage(found="exists and contains other embeddings"):
        informin.embed(model, [LONG, "a cat"], output=tmp_path / "x.npy")


def test_the_command_reads_windows(sentences, tmp_path, capfd, caplog):
    (tmp_path / "texts.txt").write_text(f"{LONG}\na cat\n")
    options = [f"--model_name={sentences}", f"--train_file={tmp_path / 'texts.txt'}", "--device=cpu", "--max_length=16"]
    assert command.main([*options, f"--output={tmp_path / 'a.npy'}", "--windows"]) == 0
    assert command.main([*options, f"--output={tmp_path / 'b.npy'}"]) == 0
    assert caplog.messages.count(TOLD) == 1 and capfd.readouterr().out
    model = informin.load_model(sentences, device="cpu", max_length=16)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), informin.embed(model, [LONG, "a cat"], windows=True))
