"""An index with static embeddings of queries: its ranking, saving, growth, and what searching imports."""

import subprocess
import sys

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import BoW

import informin
from informin.cli import run_command
from informin.errors import UsageError
from informin.frozen import static as table_module
from informin.frozen.index import Index
from informin.frozen.index_model import embed_unit
from informin.frozen.static import count_tokens, distill_vectors, embed_tokens, tokenizer_of
from informin.model.embedding import encode_in_shares
from tests.conftest import ROOT, WORDS, make_sentences, raises_usage, save_bert, save_letters

PROMPT = "the dog "  # of queries: a model that embeds queries and documents differently
QUERIES = ["the old dog runs", "a small house", "not"]


@pytest.fixture(scope="module", params=[None, PROMPT], ids=["alike", "query prompt"])
def static_index(request, st_mean, texts) -> Index:
    """Tests must not change it."""
    return Index.build(st_mean, texts, queries="static", query_prompt=request.param)


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def rows_and_scores(index: Index, queries=QUERIES, k: int = 10) -> list[tuple[list[int], list[float]]]:
    return [([hit.row for hit in hits], [hit.score for hit in hits]) for hits in index.search(queries, k)]


def test_ranks_as_the_distilled_token_vectors_and_the_adapted_smoothed_documents(static_index, st_mean, texts):
    """The row `queries by table, documents by map, smoothed` of experiments/distill.py."""
    model = SentenceTransformer(str(st_mean), device="cpu")
    tokenizer, x = tokenizer_of(model), static_index.vectors.astype(np.float32)
    np.testing.assert_allclose(x, unit(encode_in_shares(model, texts, side="document")), atol=1e-3)
    counts = count_tokens(tokenizer, texts)
    prompt = static_index.record.query_prompt
    as_queries = encode_in_shares(model, texts, side="query", prompt=prompt)
    tokens = embed_tokens(lambda some: encode_in_shares(model, some, side="query", prompt=prompt), tokenizer, counts)
    adapter, static = distill_vectors(x, counts, tokens, "search", as_queries)
    assert (static_index.static_queries.as_queries is None) == (prompt is None)
    asked = unit(count_tokens(tokenizer, QUERIES) @ static)
    np.testing.assert_allclose(static_index.embed_queries(QUERIES), asked, atol=5e-3)  # the index has float16
    cosines, words = asked @ adapter.transform(x, smooth=True).T, static_index.bm25.scores(QUERIES)
    for query, (rows, scores) in enumerate(rows_and_scores(static_index, k=len(texts))):
        expected = (cosines[query] - cosines[query].mean()) / cosines[query].std()
        if words[query].std():
            expected += 0.25 * (words[query] - words[query].mean()) / words[query].std()
        np.testing.assert_allclose(scores, expected[rows], atol=0.05)
        assert scores == sorted(scores, reverse=True) and sorted(rows) == list(range(len(texts)))


def test_a_query_of_no_words(static_index):
    hits = static_index.search(["\N{SNOWMAN}"], 3)[0]
    assert [hit.vector_score for hit in hits] == [0, 0, 0]


def test_saved(static_index, tmp_path):
    static_index.save(tmp_path)
    loaded = Index.load(tmp_path)
    assert loaded.search(QUERIES) == static_index.search(QUERIES) and isinstance(loaded.static_queries.rows, np.memmap)
    assert loaded.threshold == static_index.threshold and 0 < loaded.threshold < 1


def test_texts_are_added_and_removed_and_the_token_vectors_are_fitted_again(static_index, st_mean, texts, tmp_path):
    static_index.save(tmp_path)
    index, more = Index.load(tmp_path), make_sentences(60, seed=5)
    index.remove([3])  # needs no model
    assert index._model is None
    assert index.add(more).tolist() == list(range(150, 210))
    assert np.abs(index.static_queries.rows - static_index.static_queries.rows).max() > 0.1
    options = dict(queries="static", query_prompt=index.record.query_prompt)
    new = Index.build(st_mean, [*texts[:3], *texts[4:], *more], **options)
    # They are float16, and batches differ in rounding.
    np.testing.assert_allclose(index.static_queries.rows, new.static_queries.rows, atol=5e-3)
    np.testing.assert_allclose(index.documents, new.documents, atol=2e-3)
    index.save(tmp_path)
    assert Index.load(tmp_path).search(QUERIES) == index.search(QUERIES)


def test_of_a_large_vocabulary_the_new_tokens_of_added_texts_are_embedded(st_mean, monkeypatch):
    monkeypatch.setattr(table_module, "VOCABULARY", 9)
    texts = ["the dog sees a cat", "a small dog", "the cat"] * 5
    index = Index.build(st_mean, texts, queries="static")
    before = index.static_queries.alone
    index.add(["the old house", "a house"])
    new = np.flatnonzero(index.static_queries.alone.any(1) & ~before.any(1))
    assert {index.static_queries.tokenizer.id_to_token(token) for token in new} == {"old", "house"}
    assert index.search(["house"], 1)[0][0].text == "a house"


def test_words_of_added_texts_become_tokens(tmp_path):
    save_letters(tmp_path / "model")
    texts = make_sentences(150)
    index = Index.build(tmp_path / "model", texts, queries="static")
    index.add(["quark", "a quark", "the lepton"])
    index.save(tmp_path / "index")
    static = Index.load(tmp_path / "index").static_queries
    known = static.tokenizer.get_added_tokens_decoder().values()
    assert {"dog", "quark"} <= {token.content for token in known} and "lepton" not in static.tokenizer.get_vocab()
    np.testing.assert_array_equal(static.encode(["a quark"]), index.embed_queries(["a quark"]))
    alone = embed_unit(index.model, ["quark"], "query", None)[0]
    np.testing.assert_allclose(static.alone[static.tokenizer.token_to_id("quark")], alone, atol=1e-3)
    assert index.search(["quark"], 1)[0][0].text == "quark"


def test_words_of_the_model_itself_stay_when_the_index_grows(tmp_path):
    save_letters(tmp_path / "letters")
    informin.distill(tmp_path / "letters", ["quark", "a quark", *make_sentences(30)], task="search").save(
        tmp_path / "model"
    )
    index = Index.build(tmp_path / "model", make_sentences(30, seed=1), queries="static")
    expected = index.static_queries.model_tokenizer.get_vocab()
    assert "quark" in expected
    index.save(tmp_path / "index")
    index = Index.load(tmp_path / "index")
    index.add(["lepton", "a lepton"])
    assert index.static_queries.model_tokenizer.get_vocab() == expected
    assert {"quark", "lepton"} <= {*index.static_queries.tokenizer.get_vocab()}


def test_another_model_is_found_when_it_is_needed(static_index, tmp_path):
    save_bert(tmp_path / "other", num_hidden_layers=1, initializer_range=0.1)
    static_index.save(tmp_path / "index")
    with pytest.raises(UsageError):
        Index.load(tmp_path / "index", tmp_path / "other")
    index = Index.load(tmp_path / "index")
    object.__setattr__(index.record, "model", str(tmp_path / "other"))
    object.__setattr__(index.record, "loading", {"pooler": "mean"})
    with pytest.raises(UsageError):
        index.add(["the dog"])


def test_texts_without_a_token_that_the_model_knows(st_mean):
    with raises_usage("queries", found="no token"):
        Index.build(st_mean, ["😀", "🎉 😀"], queries="static")


def test_mistakes(st_mean, texts):
    with raises_usage("queries"):
        Index.build(st_mean, texts, queries="tabel")
    model = SentenceTransformer(str(st_mean), device="cpu", similarity_fn_name="dot")
    with raises_usage("queries"):
        Index.build(model, texts, queries="static")
    in_python = SentenceTransformer(modules=[BoW(WORDS)], device="cpu")
    in_python.encode_document = None  # texts are not embedded first
    with raises_usage("model_name"):
        Index.build(in_python, texts, queries="static")


@pytest.mark.parametrize("more", [[], ["--rerank"]], ids=["plain", "reranked"])
def test_searching_imports_neither_torch_nor_transformers(st_mean, texts, tmp_path, more):
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    folder, file = str(tmp_path / "index"), str(tmp_path / "texts.txt")
    options = ["--train_file", file, "--output_dir", folder, "--queries", "static", *more]
    assert run_command("index", *["--model_name", str(st_mean), *options]) == 0
    code = f"""
import sys
import informin
from informin.cli import run_command
print(informin.Index.load({folder!r}).search(["the old dog"], 1)[0][0].text)
assert run_command("search", *["the old dog", "--index", {folder!r}, "--k", "1"]) == 0
print(sorted({{"torch", "sentence_transformers", "transformers", "sklearn"}} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert lines[-1:] == ["[]"], done.stderr + done.stdout
    assert lines[0] == Index.load(folder).search(["the old dog"], 1)[0][0].text
