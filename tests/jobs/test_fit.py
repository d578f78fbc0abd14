"""`informin.fit`: the adapter, its verdict, and the folder that `informin fit` writes."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer

import informin
from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import HURTS, Choice, Prediction
from informin.adapters.scores import UnrelatedScores
from informin.cli import fit as command
from informin.jobs import verdict
from informin.jobs.verdict import verdict_line
from tests.conftest import raises_usage
from tests.jobs.conftest import TEXTS, embedded

VECTORS = np.random.default_rng(0).normal(size=(320, 12))
VOLATILE = ("README.md", "report.html", "report.json")  # with the name of the folder, and versions


def contents(folder) -> dict[str, object]:
    """Return the content of each file. The order of the metadata of .safetensors files varies."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in VOLATILE)
    return {path.relative_to(folder).as_posix(): content(path) for path in files}


def content(path) -> object:
    if path.suffix == ".safetensors":
        return {name: (x.shape, x.tobytes()) for name, x in load_file(path).items()}
    return path.read_bytes()


def report(folder) -> dict:
    return json.loads((folder / "report.json").read_text())


@pytest.mark.parametrize("kind", ["words", "sentences"])
def test_the_folder_is_that_of_the_command(request, kind, file, tmp_path, capfd):
    model = request.getfixturevalue(kind)
    options = ["--documents=smoothed", "--device=cpu", "--seed=3", "--preset=documents", f"--train_file={file}"]
    assert command.main([f"--model_name={model}", f"--output_dir={tmp_path / 'a'}", *options]) == 0
    printed = capfd.readouterr().out
    result = informin.fit(model, iter(TEXTS), seed=3, preset="documents", device="cpu")
    result.save(tmp_path / "b", documents="smoothed")
    assert contents(tmp_path / "a") == contents(tmp_path / "b") and "documents.npy" in contents(tmp_path / "b")
    one, other = report(tmp_path / "a"), report(tmp_path / "b")
    assert one["options"].pop("train_file") == "texts.txt" and one == other
    assert result.drift == one["drift"] and result.preset == "documents"
    assert result.prediction.gain == one["prediction"]["gain"]
    verdict = verdict_line(result.prediction, False)
    assert f"Verdict: {verdict}" in printed and verdict.startswith(result.verdict.word.lower())
    loaded = SentenceTransformer(str(tmp_path / "b"), device="cpu").encode(TEXTS[:5], normalize_embeddings=True)
    np.testing.assert_allclose(loaded, result.adapter.transform(result.vectors[:5]), atol=1e-5)


def test_a_loaded_model_is_the_model(sentences, tmp_path):
    informin.fit(sentences, TEXTS, device="cpu", preset="documents").save(tmp_path / "a")
    model = informin.load_model(sentences, device="cpu")
    informin.fit(model, TEXTS, preset="documents").save(tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_sentence_transformer_is_a_model(sentences, words, tmp_path):
    """Also one whose origin is unknown."""
    for number, folder in enumerate((sentences, words)):
        model = SentenceTransformer(str(folder), device="cpu")
        if number:
            model.model_card_data.base_model = None
        before = model.encode(TEXTS)
        result = informin.fit(model, TEXTS, preset="short_texts")
        np.testing.assert_array_equal(result.vectors, informin.embed(model, TEXTS))
        np.testing.assert_allclose(result.vectors, before, atol=1e-6)
        result.save(tmp_path / str(number))
        adapted = SentenceTransformer(str(tmp_path / str(number)), device="cpu")
        expected = result.adapter.transform(before)
        found = adapted.encode(TEXTS)
        np.testing.assert_allclose(found / np.linalg.norm(found, axis=1, keepdims=True), expected, atol=1e-5)
    assert "base_model" not in (tmp_path / "1" / "README.md").read_text()
    assert len(informin.compare([model, str(words)], TEXTS).entries) == 2


def test_embeddings_are_an_array_or_a_file(tmp_path):
    np.save(tmp_path / "x.npy", VECTORS)
    result = informin.fit(embeddings=tmp_path / "x.npy", preset="short_texts")
    result.save(tmp_path / "a")
    informin.fit(embeddings=VECTORS.tolist(), preset="short_texts").save(tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    tensor = torch.tensor(VECTORS, requires_grad=True)
    informin.fit(embeddings=tensor, preset="short_texts").save(tmp_path / "c")
    assert contents(tmp_path / "a") == contents(tmp_path / "c")
    assert informin.fit(embeddings=tensor.bfloat16(), preset="short_texts").vectors is not None
    coefficients = load_file(tmp_path / "a" / "adapter.safetensors")["coef"]
    np.testing.assert_allclose(coefficients, result.adapter.coef_)
    assert result.prediction is None and "cannot be judged" in result.verdict.sentence
    assert report(tmp_path / "a")["options"]["embeddings"] == "x.npy"


def test_embeddings_of_the_model_save_the_time_to_embed(words):
    vectors = embedded(informin.load_model(words, device="cpu"))
    given = informin.fit(words, TEXTS, embeddings=vectors, device="cpu")
    own = informin.fit(words, TEXTS, device="cpu")
    np.testing.assert_array_equal(given.adapter.coef_, own.adapter.coef_)
    with raises_usage(option="embeddings", found="the array does not have the embeddings of"):
        informin.fit(words, TEXTS, embeddings=vectors[::-1], device="cpu")
    with raises_usage(option="embeddings", found="the array has 319 rows, and there are 320 texts"):
        informin.fit(words, TEXTS, embeddings=vectors[1:], device="cpu")


@pytest.mark.parametrize("kind", ["words", "sentences"])
def test_a_folder_with_fewer_dimensions_returns_them(request, kind, file, tmp_path, capfd):
    model = request.getfixturevalue(kind)
    whole = informin.fit(model, TEXTS, device="cpu", preset="documents")
    out = tmp_path / "out"
    options = [f"--train_file={file}", f"--output_dir={out}", "--dimension=5", "--device=cpu", "--preset=documents"]
    assert command.main([f"--model_name={model}", *options, "--documents=adapted"]) == 0
    assert "Adapted vectors have 5 dimensions." in capfd.readouterr().out
    expected = whole.adapter.transform(whole.vectors)[:, :5]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(np.load(out / "documents.npy"), expected, atol=1e-5)
    found = SentenceTransformer(str(out), device="cpu").encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    own = informin.load_model(out, device="cpu")
    assert own.dimensions == 5
    np.testing.assert_allclose(
        informin.embed(own, TEXTS), SentenceTransformer(str(out), device="cpu").encode(TEXTS), atol=1e-5
    )
    cut = SentenceTransformer(str(out), device="cpu", truncate_dim=3).encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(cut, expected[:, :3] / np.linalg.norm(expected[:, :3], axis=1, keepdims=True), atol=1e-5)
    assert report(out)["curve"][0]["dimension"] == whole.vectors.shape[1]
    assert "Fewer dimensions" in (out / "report.html").read_text()


def test_a_folder_rotated_for_bits_returns_such_vectors(words, file, tmp_path, capfd):
    out, options = tmp_path / "out", ["--device=cpu", "--preset=documents", "--dimension=8", "--documents=adapted"]
    run = [f"--model_name={words}", f"--train_file={file}", f"--output_dir={out}", "--rotation=bits", *options]
    assert command.main(run) == 0 and "Adapted vectors have 8 dimensions." in capfd.readouterr().out
    keywords = dict(device="cpu", preset="documents", dimension=8)
    principal, bits = (informin.fit(words, TEXTS, rotation=name, **keywords) for name in ("principal", "bits"))
    found, plain = np.load(out / "documents.npy"), principal.adapter.transform(principal.vectors)
    np.testing.assert_allclose(found, bits.adapter.transform(bits.vectors), atol=1e-5)
    np.testing.assert_allclose(found @ found.T, plain @ plain.T, atol=1e-5)
    assert np.abs(found).sum() > np.abs(plain).sum() and report(out)["options"]["rotation"] == "bits"


def test_auto_chooses_the_dimension_by_the_curve(words, monkeypatch):
    monkeypatch.setattr("informin.jobs.fit.shortest", lambda curve: curve[2].dimension)
    result = informin.fit(words, TEXTS, device="cpu", dimension="auto")
    assert result.adapter.n_components == len(result.adapter.coef_) == result.curve[2].dimension == 8
    assert result.summary()["dimensions"] == "8 of 16"
    few = informin.fit(words, TEXTS[:60], device="cpu", dimension="auto")
    assert few.curve == [] and len(few.adapter.coef_) == 16


@pytest.fixture
def harmful(monkeypatch):
    """Every adapter that auto chooses is likely to hurt."""

    def choose(tests, **options):
        return Choice("documents", LinearAdapter(**options).fit(tests[0].fit_on), Prediction(-0.5, 0.1, 80))

    monkeypatch.setattr(verdict, "choose", choose)


def test_an_adapter_that_is_likely_to_hurt_is_not_saved(harmful, words, tmp_path):
    result = informin.fit(words, TEXTS, device="cpu")
    assert result.prediction.verdict == HURTS and result.verdict.word == "Likely to hurt"
    with raises_usage(option="preset", found="likely to hurt", fix="with the preset documents"):
        result.save(tmp_path / "out")
    assert not list(tmp_path.iterdir()) and result.adapter.coef_.shape == (16, 16)
    informin.fit(words, TEXTS, preset="documents", device="cpu").save(tmp_path / "out")
    assert (tmp_path / "out" / "modules.json").exists()


def test_the_command_prints_the_verdict_and_writes_nothing_then(harmful, words, file, tmp_path, capfd):
    options = [f"--model_name={words}", f"--train_file={file}", f"--output_dir={tmp_path / 'out'}", "--device=cpu"]
    assert command.main(options) == 2
    out, err = capfd.readouterr()
    assert [line.partition(":")[0] for line in out.splitlines()] == ["Preset", "Verdict"] and HURTS in out
    assert err.startswith("error: --preset auto finds that the adapter is likely to hurt.") and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_folder_in_use_is_kept(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    with raises_usage(option="output_dir", found="is in use"):
        informin.fit(embeddings=VECTORS).save(tmp_path / "out")
    with raises_usage(option="documents", found="is raw", needed="adapted, smoothed"):
        informin.fit(embeddings=VECTORS).save(tmp_path / "new", documents="raw")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["mine", "out"]


MISTAKES = {
    "nothing": ("model", {}),
    "no texts": ("texts", {"model": "m"}),
    "empty": ("texts", {"model": "m", "texts": []}),
    "one string": ("texts", {"model": "m", "texts": "texts.txt"}),
    "numbers": ("texts", {"model": "m", "texts": ["a", 1.5]}),
    "pooler": ("pooler", {"model": "m", "texts": ["a"], "pooler": "cls"}),
    "dimension": ("dimension", {"embeddings": VECTORS, "dimension": 0}),
    "more dimensions": ("dimension", {"embeddings": VECTORS, "dimension": 13}),
    "dimension of vectors": ("dimension", {"embeddings": VECTORS, "dimension": "auto"}),
    "rotation": ("rotation", {"embeddings": VECTORS, "rotation": "itq"}),
    "word for dimension": ("dimension", {"embeddings": VECTORS, "dimension": "few"}),
    "preset": ("preset", {"embeddings": VECTORS, "preset": "best"}),
    "seed": ("seed", {"embeddings": VECTORS, "seed": -1}),
    "kind of model": ("model", {"model": 5, "texts": ["a"]}),
    "vector": ("embeddings", {"embeddings": VECTORS[0]}),
    "integers": ("embeddings", {"embeddings": [[1, 2], [3, 4]]}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_errors(mistake):
    option, given = MISTAKES[mistake]
    with raises_usage(option=option):
        informin.fit(**given)


def test_unknown_keywords_are_errors():
    with pytest.raises(TypeError, match="promt"):
        informin.fit(embeddings=VECTORS, promt="query: ")


def test_a_loaded_model_keeps_its_own_options(sentences):
    model = informin.load_model(sentences, device="cpu", pooler="cls")
    with raises_usage(option="pooler", needed="auto", fix="keeps the pooling"):
        informin.fit(model, TEXTS)
    with raises_usage(option="batch_size", found="has no effect on a model that is loaded already"):
        informin.fit(informin.load_model(sentences, device="cpu"), TEXTS, batch_size=8)


def test_results_show_their_figures(words, tmp_path):
    result = informin.fit(words, TEXTS, device="cpu")
    shown = repr(result)
    assert "Adapter for words" in shown and f"verdict: {verdict_line(result.prediction, True)}" in shown
    assert "fitted on: 320 embeddings of 16 dimensions" in shown and len(shown.splitlines()) < 12
    result.name = "<b>words"
    html = result._repr_html_()
    assert "Adapter for &lt;b&gt;words" in html and "<b>" not in html
    assert html.count("<table") == html.count("</table>") == 2 and "neighbors kept" in html


@pytest.mark.parametrize(
    ("folder", "card", "given", "expected"),
    [
        ("model", "---\nlicense: mit\n---\n\n# all-MiniLM-L6-v2\nText\n", None, "all-MiniLM-L6-v2"),
        ("checkpoint-80", "# My-model\n", None, "My-model"),
        ("model", "# A model for tickets\n", None, "model"),  # a sentence
        ("model", None, None, "model"),
        ("tickets", "# all-MiniLM-L6-v2\n", None, "tickets"),
        ("model", "# all-MiniLM-L6-v2\n", "my tickets", "my tickets"),
    ],
)
def test_the_name_of_the_model(words, tmp_path, capfd, folder, card, given, expected):
    model = shutil.copytree(words, tmp_path / folder)
    if card:
        (model / "README.md").write_text(card)
    assert f"Adapter for {expected}\n" in repr(informin.fit(model, TEXTS, name=given, device="cpu", preset="documents"))
    if card is None or given:
        (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
        options = ["--device=cpu", "--preset=documents", f"--train_file={tmp_path / 'texts.txt'}"]
        named = [f"--name={given}"] if given else []
        assert command.main([f"--model_name={model}", f"--output_dir={tmp_path / 'out'}", *options, *named]) == 0
        assert ("Use --name" in capfd.readouterr().out) == (given is None)
        assert report(tmp_path / "out")["model"] == expected
        assert f"This model is `{expected}` with" in (tmp_path / "out" / "README.md").read_text()


def test_a_blank_name_is_an_error(words):
    with raises_usage(option="name", found="is blank"):
        informin.fit(words, TEXTS, name=" ")


def test_the_folder_says_what_scores_mean(words, tmp_path):
    result = informin.fit(words, TEXTS, device="cpu", preset="documents")
    above = result.adapter.threshold()
    assert f"above a cosine of {above:.3f}" in result.summary()["scores"]
    result.save(tmp_path / "adapted")
    scores = UnrelatedScores.load(tmp_path / "adapted")
    assert (scores.texts, scores.threshold()) == (320, above)
    result.save(tmp_path / "smoothed", documents="smoothed")
    assert UnrelatedScores.load(tmp_path / "smoothed").threshold() != above == result.adapter.threshold()
    result.save(tmp_path / "again", documents="adapted")
    assert UnrelatedScores.load(tmp_path / "again").threshold() == above


def test_few_texts_have_no_scores(words, tmp_path):
    result = informin.fit(words, TEXTS[:60], device="cpu", preset="documents")
    result.save(tmp_path / "few")
    assert "scores" not in result.summary() and not (tmp_path / "few" / "cosines.json").exists()


def test_truncated_texts_are_told_and_vectors_of_windows_accepted(sentences, caplog):
    model = informin.load_model(sentences, device="cpu", max_length=16)
    texts = [" ".join(TEXTS[i : i + 6]) for i in range(60)]
    with caplog.at_level("WARNING"):
        informin.fit(model, texts, preset="short_texts")
    assert "60 texts are longer than 16 tokens, and truncated." in caplog.messages
    vectors = informin.embed(model, texts, windows=True)
    assert informin.fit(model, texts, embeddings=vectors, preset="short_texts").vectors is not None
    with raises_usage(option="embeddings", found="does not have the embeddings of"):
        informin.fit(model, texts, embeddings=vectors[::-1].copy(), preset="short_texts")
