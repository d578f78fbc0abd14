"""`informin.fit`: the adapter, what it says, and the folder that it writes."""

import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest
import sklearn
import torch
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from informin.frozen.adapter import TASKS, LinearAdapter
from informin.frozen.distill import distill
from informin.frozen.fit import fit
from informin.frozen.index import Index
from informin.model.embedding import embed
from tests.conftest import raises_usage, save_sentence_transformer
from tests.frozen.conftest import PROMPTS, TEXTS

ROOT = Path(__file__).parents[2]
VECTORS = np.random.default_rng(0).normal(size=(320, 12))


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_the_code_of_the_page_names_clusters_by_their_texts(st_mean, capsys, tmp_path, monkeypatch):
    page = (ROOT / "docs/adapters.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?KMeans.*?)^```", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_titles.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    names: dict = {}
    exec(code.replace("sentence-transformers/all-MiniLM-L6-v2", str(st_mean)), names)
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 20 and sum(int(size) for size, *_ in rows) == len(TEXTS)
    assert {text for _, *texts in rows for text in texts} <= {*TEXTS}
    for cluster, (_, nearest, *_others) in enumerate(rows):  # the first text is one of the cluster
        assert any(names["clusters"].labels_[row] == cluster for row, text in enumerate(TEXTS) if text == nearest)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", ["static", "st_mean", "prompted"])
def test_the_saved_model_is_the_model_with_the_adapter(request, kind, task, tmp_path):
    folder = request.getfixturevalue(kind)
    result = fit(folder, iter(TEXTS), task=task, device="cpu")
    encoder, method = SentenceTransformer(str(folder), device="cpu"), {"search": "encode_document"}.get(task, "encode")
    before = getattr(encoder, method)(TEXTS)
    np.testing.assert_allclose(result.vectors, before, atol=1e-5)
    adapter = LinearAdapter(**TASKS[task]).fit(result.vectors)
    np.testing.assert_array_equal(result.adapter.coef_, adapter.coef_)
    result.save(tmp_path / "better")
    adapted = SentenceTransformer(str(tmp_path / "better"), device="cpu")
    np.testing.assert_allclose(unit(getattr(adapted, method)(TEXTS)), adapter.transform(before), atol=1e-5)
    queries = encoder.encode_query(TEXTS[:9])
    np.testing.assert_allclose(unit(adapted.encode_query(TEXTS[:9])), adapter.transform(queries), atol=1e-5)
    assert (tmp_path / "better" / "report.html").is_file() and adapted.similarity_fn_name == "cosine"
    assert "\n# better\n" in (tmp_path / "better" / "README.md").read_text()


def test_saving_leaves_the_random_state_of_torch(st_mean, tmp_path):
    result, before = fit(st_mean, TEXTS[:40], task="search", device="cpu"), torch.get_rng_state()
    result.save(tmp_path / "better")
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize("task, number", [("search", 300), ("clustering", 500)])
def test_few_texts_warn(caplog, task, number):
    """Duplicates count once."""
    vectors = np.random.default_rng(0).normal(size=(number, 12))
    for embeddings, warns in ((vectors, False), (np.concatenate([vectors[1:], vectors[1:]]), True)):
        with caplog.at_level(logging.WARNING, "informin"):
            fit(task=task, embeddings=embeddings)
        assert [str(number) in record.message for record in caplog.records] == [True] * warns


def test_auto_model_applies_the_adapter(st_mean, tmp_path):
    result = fit(st_mean, TEXTS, task="clustering", dimension=9, device="cpu")
    result.save(tmp_path / "better")
    model = AutoModel.from_pretrained(tmp_path / "better", trust_remote_code=True).eval()
    tokens = AutoTokenizer.from_pretrained(tmp_path / "better")(TEXTS[:20], padding=True, return_tensors="pt")
    with torch.no_grad():
        vectors = model(**tokens).pooler_output.numpy()
    np.testing.assert_allclose(unit(vectors), result.adapter.transform(result.vectors[:20]), atol=1e-5)


def test_a_sentence_transformer_is_a_model_and_stays_as_it_is(st_mean, tmp_path):
    model = SentenceTransformer(str(st_mean), device="cpu")
    before = model.encode(TEXTS)
    fit(model, TEXTS, task="search").save(tmp_path / "a")
    fit(st_mean, TEXTS, task="search", device="cpu").save(tmp_path / "b")
    np.testing.assert_array_equal(model.encode(TEXTS), before)
    a, b = (SentenceTransformer(str(tmp_path / name), device="cpu").encode(TEXTS) for name in "ab")
    np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("prompt", [None, ""])
def test_a_stored_prompt_of_passages_is_that_of_documents_unless_replaced(bert, tmp_path, prompt):
    prompts = {"query": "the ", "passage": "a young "}
    source = save_sentence_transformer(tmp_path / "source", bert, prompts=prompts)
    expected = "a young " if prompt is None else prompt
    result = fit(source, TEXTS, task="search", prompt=prompt, device="cpu")
    np.testing.assert_allclose(result.vectors, embed(source, TEXTS, prompt=expected, device="cpu"), atol=1e-5)
    result.save(tmp_path / "better")
    adapted = SentenceTransformer(str(tmp_path / "better"), device="cpu").encode_document(TEXTS[:9])
    np.testing.assert_allclose(unit(adapted), result.adapter.transform(result.vectors[:9]), atol=1e-5)


def test_a_prompt_is_saved_for_documents_and_queries_keep_theirs(prompted, tmp_path):
    result = fit(prompted, TEXTS, task="search", prompt="old ", device="cpu")
    np.testing.assert_allclose(result.vectors, embed(prompted, TEXTS, prompt="old ", device="cpu"), atol=1e-5)
    result.save(tmp_path / "better")
    adapted = SentenceTransformer(str(tmp_path / "better"), device="cpu")
    for vectors in (adapted.encode(TEXTS), adapted.encode_document(TEXTS)):
        np.testing.assert_allclose(vectors, result.adapter.transform(result.vectors), atol=1e-5)
    assert adapted.prompts["query"] == PROMPTS["query"]


def test_embeddings_alone_give_an_adapter_and_documents(tmp_path):
    np.save(tmp_path / "x.npy", VECTORS.astype(np.float32))
    result = fit(embeddings=tmp_path / "x.npy", task="search", dimension=5)
    result.save(tmp_path / "out")
    coef = load_file(tmp_path / "out" / "adapter.safetensors")["coef"]
    documents = np.load(tmp_path / "out" / "documents.npy")
    np.testing.assert_allclose(unit(VECTORS @ coef.T), documents, atol=1e-5)
    assert documents.shape == (320, 5) and (tmp_path / "out" / "report.html").is_file()
    with raises_usage(option="output_dir"):
        result.save(tmp_path / "out")


def test_tables_of_scikit_learn_change_nothing(st_mean, tmp_path):
    """Notebooks often set pandas as the output of all transformers."""
    expected = fit(embeddings=VECTORS, task="search")
    index = Index.build(st_mean, TEXTS[:40], queries="static")
    with sklearn.config_context(transform_output="pandas"):
        result = fit(embeddings=VECTORS, task="search")
        result.save(tmp_path)
        again = Index.build(st_mean, TEXTS[:40], queries="static")
    np.testing.assert_array_equal(np.load(tmp_path / "documents.npy"), expected.adapter.transform(VECTORS))
    assert result.drift == expected.drift
    assert isinstance(again.documents, np.ndarray) and np.array_equal(again.documents, index.documents)


def test_a_table_that_embeds_in_float32_needs_no_warning(static, monkeypatch, caplog):
    monkeypatch.setattr("informin.fast.precision.native_precision", lambda device: "bf16")
    with caplog.at_level(logging.WARNING, "informin"):
        assert fit(static, TEXTS, task="search").precision == "fp32"
        assert not caplog.records
        fit(static, TEXTS, task="search", precision="bf16")
    assert "fp32 instead of bf16" in caplog.text


def test_embeddings_of_the_model_save_time_and_others_are_refused(st_mean, monkeypatch):
    vectors = embed(st_mean, TEXTS, device="cpu")
    expected = fit(st_mean, TEXTS, task="search", device="cpu")
    result = fit(st_mean, TEXTS, task="search", embeddings=vectors, device="cpu")
    np.testing.assert_array_equal(result.adapter.coef_, expected.adapter.coef_)
    for wrong in (vectors[::-1], vectors[:9], VECTORS):
        with raises_usage(option="embeddings"):
            fit(st_mean, TEXTS, task="search", embeddings=wrong, device="cpu")
    with raises_usage(option="embeddings"):
        fit(texts=TEXTS[:9], task="search", embeddings=vectors)


def test_the_record_of_embeddings_tells_of_texts_that_changed(st_mean, tmp_path):
    """Five texts are embedded again, which misses one that changed among 320."""
    path = tmp_path / "x.npy"
    embed(st_mean, TEXTS, path, device="cpu")
    changed = [*TEXTS[:200], "an edited text", *TEXTS[201:]]
    fit(st_mean, TEXTS, task="search", embeddings=path, device="cpu")
    for model in (None, st_mean):
        with raises_usage(option="embeddings", found="other texts"):
            fit(model, changed, task="search", embeddings=path)
    with raises_usage(option="embeddings", found="other texts"):
        distill(st_mean, changed, task="clustering", embeddings=path)
    np.save(path, 2 * np.load(path))  # the record is no longer that of the file
    fit(None, changed, task="search", embeddings=path)


def test_what_it_says_has_at_most_eight_lines(st_mean, tmp_path):
    result = fit(st_mean, TEXTS, task="search", device="cpu")
    result.save(tmp_path / "better")
    lines = repr(result).splitlines()
    assert len(lines) <= 8 and f'SentenceTransformer("{tmp_path / "better"}")' in lines[-1]
    assert any(line.lstrip().startswith("drift") for line in lines)
    assert any("informin eval --retrieval" in line for line in lines)
    assert "retrieval" not in repr(fit(embeddings=VECTORS, task="clustering"))
    assert "informin" not in result._repr_html_() or "<td" in result._repr_html_()


def test_the_drift_is_that_of_the_adapter():
    result = fit(embeddings=VECTORS, task="search")
    x, y = (unit(z) @ unit(z).T - 2 * np.eye(320) for z in (VECTORS, result.adapter.transform(VECTORS)))
    near, far = (np.argsort(-z, axis=1)[:, :10] for z in (x, y))
    kept = np.mean([len(set(a) & set(b)) for a, b in zip(near, far)]) * 10
    assert result.drift["new"]["neighbors_kept"] == pytest.approx(kept, abs=0.2)
    assert json.loads(json.dumps(result.drift)) == result.drift
    assert fit(embeddings=VECTORS[:20], task="search").drift is None


def test_the_threshold_is_that_of_the_adapter():
    draw = np.random.default_rng(3)
    topics = draw.normal(size=(20, 12))[np.repeat(np.arange(20), 10)] + 0.3 * draw.normal(size=(200, 12))
    result = fit(embeddings=topics, task="clustering")
    assert result.threshold == result.adapter.threshold() > 0
    assert fit(embeddings=topics[:50], task="clustering").threshold is None


def test_the_dimension_is_checked_before_the_texts_are_embedded(st_mean, monkeypatch):
    monkeypatch.setattr("informin.frozen.vectors.encode_in_shares", pytest.fail)
    with raises_usage("dimension", needed="1 to 32"):
        fit(st_mean, TEXTS, task="search", dimension=33, device="cpu")


def test_mistakes_are_errors(st_mean):
    for option, wrong in (
        ("task", {"task": "documents", "embeddings": VECTORS}),
        ("model_name", {}),
        ("train_file", {"model": st_mean}),
        ("train_file", {"model": st_mean, "texts": []}),
        ("pooler", {"model": st_mean, "texts": ["the dog", "a cat"], "pooler": "first_last"}),
        ("dimension", {"embeddings": VECTORS, "dimension": 13}),
        ("rotation", {"embeddings": VECTORS, "rotation": "itq"}),
        ("seed", {"embeddings": VECTORS, "rotation": "bits", "seed": -1}),
        ("embeddings", {"embeddings": "x.pkl"}),
    ):
        loading = {"device": "cpu"} if "model" in wrong else {}
        with raises_usage(option=option):
            fit(**({"task": "search"} | loading | wrong))
    with pytest.raises(TypeError, match="task"):
        fit(embeddings=VECTORS)
