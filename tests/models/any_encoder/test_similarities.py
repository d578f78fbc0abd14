"""Models that declare another similarity than the cosine: every command uses it, or says that it does not."""

import json
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, Transformer

from informin.cli import compare as compare_command
from informin.cli import eval as eval_command
from informin.cli import fit as fit_command
from informin.demo.load import load_search
from informin.demo.render import results_html
from informin.evaluation.collections import load_collection
from informin.evaluation.geometry import unit
from informin.labeled_sentences import Sentences
from informin.models.open_model import load_model
from informin.publishing.export import export_checkpoint
from tests.conftest import make_sentences
from tests.evaluation.test_collections import DOCUMENTS, QUERIES, tsv  # noqa: F401

TEXTS = make_sentences(60)
NAMES = {"dot": "dot product", "euclidean": "negative euclidean distance", "manhattan": "negative manhattan distance"}
BACKENDS = pytest.mark.parametrize("backend", ["native", "st"])


def declared(bert: Path, folder: Path, backend: str, similarity: str, *more) -> Path:
    """Save a model that does not normalize its embeddings, whose Dense module makes it general."""
    dense = [Dense(32, 32)] if backend == "st" else []
    modules = [Transformer(str(bert)), Pooling(32, pooling_mode="mean"), *dense, *more]
    model = SentenceTransformer(modules=modules, device="cpu", similarity_fn_name=similarity)
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


def by_library(folder: Path, collection) -> np.ndarray:
    model = SentenceTransformer(str(folder), device="cpu")
    return model.similarity(model.encode_query(collection.queries), model.encode_document(collection.documents)).numpy()


@BACKENDS
@pytest.mark.parametrize("similarity", NAMES)
def test_eval_ranks_by_it_and_says_so(bert, tsv, tmp_path, capsys, backend, similarity):  # noqa: F811
    folder, collection = declared(bert, tmp_path / "model", backend, similarity), load_collection(tsv)
    pairs = tmp_path / "faq.tsv"
    pairs.write_text("\n".join(["query\tdocument", *(f"{q}\t{d}" for q, d in zip(QUERIES, DOCUMENTS))]) + "\n")
    how = ["--model_name", str(folder), "--device", "cpu", "--output", str(tmp_path / "out.json"), "--retrieval"]
    assert eval_command.main([*how[:4], "--retrieval", str(tsv)]) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = collection.scores(np.argsort(-by_library(folder, collection), axis=1))
    assert lines[2].split()[2:4] == [f"{expected[name].mean():.2f}" for name in ("mrr_10", "ndcg_10")]
    assert lines[-1].startswith(f"Similarity in STS and retrieval: {NAMES[similarity]}, as declared by model, ")
    assert eval_command.main([*how, str(pairs)]) == 0
    assert f"Similarity in STS and retrieval: {NAMES[similarity]}" in capsys.readouterr().out
    results = json.loads((tmp_path / "out.json").read_text())
    model = SentenceTransformer(str(folder), device="cpu")
    scores = model.similarity(model.encode(QUERIES), model.encode(DOCUMENTS[: len(QUERIES)])).numpy()
    ranks = 1 + (scores > np.diag(scores)[:, None]).sum(1)
    assert results["similarity"] == similarity
    assert results["tasks"]["faq"]["measures"]["mrr_10"] == pytest.approx(100 * (1 / ranks).mean())


def test_a_pooling_by_name_is_compared_by_cosine(bert, tmp_path, caplog):
    folder = declared(bert, tmp_path / "model", "native", "dot")
    with caplog.at_level("INFO"):
        assert load_model(str(folder), ("cls",), device="cpu").similarity == "cosine"
    assert "declares the similarity dot for its own pooling. Others use the cosine." in caplog.text
    assert load_model(str(folder), device="cpu").similarity == "dot"


@BACKENDS
def test_the_dot_product_of_unit_vectors_is_the_cosine(bert, tmp_path, backend):
    folder = declared(bert, tmp_path / "model", backend, "dot", Normalize())
    assert load_model(str(folder), device="cpu").similarity == "cosine"


@BACKENDS
@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
def test_a_fitted_folder_declares_the_cosine_and_ranks_as_its_documents(bert, tmp_path, capsys, backend, similarity):
    folder = declared(bert, tmp_path / "model", backend, similarity)
    texts = TEXTS[:24]  # too few for a drift report, which takes longest
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    how = ["--model_name", str(folder), "--train_file", str(tmp_path / "texts.txt"), "--device", "cpu"]
    assert fit_command.main([*how, "--output_dir", str(tmp_path / "out"), "--documents", "adapted"]) == 0
    assert f"The model compares embeddings by {similarity}, the adapted one by cosine" in capsys.readouterr().out
    if backend == "native":
        export_checkpoint(tmp_path / "out", tmp_path / "export")
    for path in ("out", "export") if backend == "native" else ("out",):
        model, documents = (
            SentenceTransformer(str(tmp_path / path), device="cpu"),
            np.load(tmp_path / "out/documents.npy"),
        )
        similar = model.similarity(model.encode(texts[:9]), model.encode(texts)).numpy()
        np.testing.assert_allclose(similar, unit(model.encode(texts[:9])) @ documents.T, atol=1e-5)
        assert load_model(str(tmp_path / path), device="cpu").similarity == "cosine"
    settings = json.loads((tmp_path / "out" / "config_sentence_transformers.json").read_text())
    assert settings["similarity_fn_name"] == "cosine"


@BACKENDS
@pytest.mark.parametrize("similarity", ["dot", "manhattan"])
def test_the_search_page_ranks_by_it(bert, tmp_path, monkeypatch, backend, similarity):
    monkeypatch.setattr("informin.demo.load.constants.HF_HOME", str(tmp_path))
    folder = declared(bert, tmp_path / "model", backend, similarity)
    found = load_search([load_model(str(folder), device="cpu")], Sentences(TEXTS, None))
    model = SentenceTransformer(str(folder), device="cpu")
    similar = model.similarity(model.encode(["the dog"]), model.encode(found.sentences.texts)).numpy()[0]
    (results,) = found("the dog", hits=5)
    assert [hit.text for hit in results.hits] == [found.sentences.texts[i] for i in np.argsort(-similar)[:5]]
    np.testing.assert_allclose([hit.similarity for hit in results.hits], np.sort(similar)[::-1][:5], rtol=1e-4)
    assert f"<span>{similarity} {results.hits[0].similarity:.3f}</span>" in results_html([results], 1, 0.1)


def test_compare_says_that_it_uses_the_cosine(bert, tmp_path, capsys):
    folder = declared(bert, tmp_path / "model", "native", "dot")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    assert compare_command.main([str(folder), "--train_file", str(tmp_path / "texts.txt"), "--device", "cpu"]) == 0
    assert "model: compared by cosine, although the model declares the similarity dot." in capsys.readouterr().out


def test_a_fitted_folder_of_a_trained_model_declares_it_once(bert, tmp_path):
    """Exported folders keep the settings of sentence-transformers in its own files, not in config.json."""
    folder = declared(bert, tmp_path / "model", "native", "dot")
    config = json.loads((folder / "config.json").read_text())
    own = {"pooling": "mean", "projection_head": "none", "lm_head": False}
    config["informin"] = own | {"sentence_transformers": {"similarity_fn_name": "dot", "max_seq_length": 32}}
    (folder / "config.json").write_text(json.dumps(config))
    assert load_model(str(folder), device="cpu").similarity == "dot"
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:24]) + "\n")
    how = ["--model_name", str(folder), "--train_file", str(tmp_path / "texts.txt"), "--device", "cpu"]
    assert fit_command.main([*how, "--output_dir", str(tmp_path / "out")]) == 0
    kept = load_model(str(tmp_path / "out"), device="cpu")
    assert (kept.similarity, kept.length) == ("cosine", 32)
    assert "sentence_transformers" not in json.loads((tmp_path / "out" / "config.json").read_text())["informin"]
