"""Models with a Router: queries and documents go through their own modules, as in sentence-transformers."""

import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, Router, StaticEmbedding, Transformer
from transformers import AutoTokenizer

from informin.cli import embed as embed_command
from informin.cli import eval as eval_command
from informin.cli import fit as fit_command
from informin.demo.load import load_search
from informin.evaluation.collections import load_collection, load_retrieval_pairs
from informin.labeled_sentences import Sentences
from informin.models.open_model import load_model
from tests.conftest import make_sentences, raises_usage
from tests.evaluation.test_collections import DOCUMENTS, QUERIES, tsv  # noqa: F401
from tests.models.any_encoder.helpers import general_trainer

TEXTS = make_sentences(60)
KINDS = ("whole", "heads", "static", "other default", "no default", "mapped")


def save_routed(kind: str, bert: Path, folder: Path, **options) -> Path:
    """Save a model with a route for queries and one for documents."""
    torch.manual_seed(5)

    def encoder() -> list:
        return [Transformer(str(bert)), Pooling(32, pooling_mode="mean")]

    def both() -> list[list]:
        return [[*encoder(), Dense(32, 32), Normalize()] for _ in range(2)]

    if kind == "whole":
        modules = [Router.for_query_document(*both())]
    elif kind == "heads":
        modules = [*encoder(), Router.for_query_document([Dense(32, 32)], [Dense(32, 32)]), Normalize()]
    elif kind == "static":  # queries need no transformer
        words = AutoTokenizer.from_pretrained(bert).backend_tokenizer
        modules = [Router.for_query_document([StaticEmbedding(words, embedding_dim=32)], encoder())]
    elif kind == "other default":  # the first route
        modules = [Router(dict(zip(("query", "document"), both())), allow_empty_key=True)]
    elif kind == "no default":
        modules = [Router(dict(zip(("query", "document"), both())), allow_empty_key=False)]
    elif kind == "mapped":
        mapped = {("query", None): "light", ("document", None): "heavy"}
        modules = [Router(dict(zip(("light", "heavy"), both())), route_mappings=mapped)]
    elif kind == "other names":
        modules = [*encoder(), Router({"query": [Dense(32, 32)], "doc": [Dense(32, 32)]})]
    else:
        assert kind == "other sizes"
        modules = [*encoder(), Router.for_query_document([Dense(32, 16)], [Dense(32, 32)])]
    named = OrderedDict((str(i), module) for i, module in enumerate(modules))
    SentenceTransformer(modules=named, device="cpu", **options).save_pretrained(str(folder), create_model_card=False)
    return folder


@pytest.fixture(scope="module")
def routed(bert, tmp_path_factory):
    """Return a function that saves a model of a kind once."""
    saved: dict[str, Path] = {}

    def model(kind: str) -> Path:
        if kind not in saved:
            saved[kind] = save_routed(kind, bert, tmp_path_factory.mktemp("routed") / "model")
        return saved[kind]

    return model


def library(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_collections_use_both_routes(routed, tsv, capsys, kind):  # noqa: F811
    folder, collection = routed(kind), load_collection(tsv)
    assert eval_command.main(["--model_name", str(folder), "--retrieval", str(tsv), "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    theirs = library(folder)
    similar = theirs.similarity(theirs.encode_query(collection.queries), theirs.encode_document(collection.documents))
    expected = collection.scores(np.argsort(-similar.numpy(), axis=1))
    assert lines[2].split()[2:4] == [f"{expected[name].mean():.2f}" for name in ("mrr_10", "ndcg_10")]
    assert lines[-1] == "Routes: the Router of model, st has one for queries and one for documents."


@pytest.mark.parametrize("kind", ["whole", "other default"])
def test_files_of_pairs_use_both_routes(routed, tmp_path, kind):
    pairs, output = tmp_path / "faq.tsv", tmp_path / "out.json"
    pairs.write_text("\n".join(["query\tdocument", *(f"{q}\t{d}" for q, d in zip(QUERIES, DOCUMENTS))]) + "\n")
    how = ["--model_name", str(routed(kind)), "--retrieval", str(pairs), "--device", "cpu", "--output", str(output)]
    assert eval_command.main(how) == 0
    theirs = library(routed(kind))
    expected = load_retrieval_pairs(pairs).score(theirs.encode_document, theirs.encode_query)
    entry = json.loads(output.read_text())["tasks"]["faq"]
    assert entry["measures"] == pytest.approx(expected) and entry["prompts"] == {"query": "", "document": ""}


@pytest.mark.parametrize("kind", ["static", "other default", "no default"])
def test_embed_takes_texts_as_documents_unless_told_otherwise(routed, tmp_path, kind):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS) + "\n")
    theirs = library(routed(kind))
    expected = {None: theirs.encode_document, "document": theirs.encode_document, "query": theirs.encode_query}
    for i, (name, encode) in enumerate(expected.items()):
        how = ["--model_name", str(routed(kind)), "--train_file", str(texts), "--device", "cpu"]
        more = ["--prompt_name", name] if name else []
        assert embed_command.main([*how, "--output", str(tmp_path / f"{i}.npy"), *more]) == 0
        np.testing.assert_allclose(np.load(tmp_path / f"{i}.npy"), encode(TEXTS), atol=1e-5)


def test_vectors_of_one_route_are_not_taken_for_those_of_the_other(routed, tmp_path, capsys):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS) + "\n")
    how = ["--model_name", str(routed("whole")), "--train_file", str(texts), "--output", str(tmp_path / "x.npy")]
    assert embed_command.main([*how, "--device", "cpu"]) == 0
    assert embed_command.main([*how, "--device", "cpu", "--prompt_name", "query"]) == 2
    assert "contains other embeddings" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["whole", "heads"])
def test_a_fitted_folder_ranks_as_its_documents(routed, tmp_path, capsys, kind):
    texts = TEXTS[:24]  # too few for a drift report, which takes longest
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    how = ["--model_name", str(routed(kind)), "--train_file", str(tmp_path / "texts.txt"), "--device", "cpu"]
    assert fit_command.main([*how, "--output_dir", str(tmp_path / "out"), "--documents", "adapted"]) == 0
    assert "Embed queries with its encode_query, and documents with its encode_document." in capsys.readouterr().out
    theirs, documents = library(tmp_path / "out"), np.load(tmp_path / "out" / "documents.npy")
    found = theirs.encode_document(texts)
    np.testing.assert_allclose(found / np.linalg.norm(found, axis=1, keepdims=True), documents, atol=1e-5)
    queries = load_model(str(tmp_path / "out"), device="cpu").for_side("query", "")(TEXTS[:5])["st"]
    np.testing.assert_allclose(queries, theirs.encode_query(TEXTS[:5]), atol=1e-5)


@pytest.mark.parametrize("kind", ["whole", "other default", "no default"])
def test_the_search_page_uses_both_routes(routed, tmp_path, monkeypatch, kind):
    monkeypatch.setattr("informin.demo.load.constants.HF_HOME", str(tmp_path))
    found = load_search([load_model(str(routed(kind)), device="cpu")], Sentences(TEXTS, None))
    theirs = library(routed(kind))
    similar = theirs.similarity(theirs.encode_query(["the old dog"]), theirs.encode_document(found.sentences.texts))
    best = np.argsort(-similar.numpy()[0])[:5]
    (results,) = found("the old dog", hits=5)
    assert [hit.text for hit in results.hits] == [found.sentences.texts[i] for i in best]
    np.testing.assert_allclose([hit.similarity for hit in results.hits], similar[0][best.copy()], atol=1e-5)


def test_other_texts_take_the_default_route_if_there_is_one(routed):
    for kind in ("whole", "other default"):
        np.testing.assert_allclose(
            load_model(str(routed(kind)), device="cpu")(TEXTS)["st"], library(routed(kind)).encode(TEXTS), atol=1e-5
        )
    with raises_usage(option="model_name", found="has a Router without a default route", fix="`retrieval`"):
        load_model(str(routed("no default")), device="cpu")(TEXTS)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("other names", "without a route for a document: No route found for task type 'document'"),
        ("other sizes", "embeds a query in 16 dimensions by one route, and texts in 32 by another"),
    ],
)
def test_routes_that_cannot_be_compared_are_refused(routed, tsv, capsys, kind, found):  # noqa: F811
    assert eval_command.main(["--model_name", str(routed(kind)), "--retrieval", str(tsv), "--device", "cpu"]) == 2
    assert found in capsys.readouterr().err


def test_whitening_is_refused(routed, tmp_path, capsys):
    (tmp_path / "a.tsv").write_text("query\tdocument\nthe dog\ta cat\na man\tthe old dog\n")
    how = ["--retrieval", str(tmp_path / "a.tsv"), "--whitening", "2", "--device", "cpu"]
    assert eval_command.main(["--model_name", str(routed("whole")), *how]) == 2
    assert "--whitening cannot be used with a Router. Leave it out." in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["whole", "heads"])
@pytest.mark.parametrize("options", [{}, {"lora_r": 4}], ids=["all weights", "lora"])
def test_training_is_refused(routed, tmp_path, kind, options):
    with raises_usage(option="model_name", found="has a Router: training would change the route of documents"):
        general_trainer(routed(kind), tmp_path / "run", **options)
    with raises_usage(option="model_name", found="has a Router"):
        general_trainer(library(routed(kind)), tmp_path / "run")
    assert not (tmp_path / "run").exists()
