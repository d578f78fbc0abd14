"""An index that reranks: hits, saving, adding, removing, and models without token vectors."""

from dataclasses import replace

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from informin.cli import run_command
from informin.frozen import late_interaction
from informin.frozen.index import Index
from informin.frozen.index_files import DATA
from informin.frozen.index_model import token_vector_bytes
from informin.frozen.late_interaction import CANDIDATES
from informin.frozen.static import tokenizer_of
from informin.frozen.token_vectors import embed_documents, embed_queries
from tests.conftest import make_sentences, raises_usage, save_letters
from tests.frozen.test_index import QUERIES


@pytest.fixture(scope="module")
def looking(st_mean, texts) -> Index:
    """Tests must not change it."""
    return Index.build(st_mean, texts, rerank=True)


def test_the_first_hits_are_reordered_by_their_tokens(looking, built):
    tokens = looking._state.tokens
    _, asked = embed_queries(looking.model, QUERIES, tokens.projection)
    for query, (first, hits) in enumerate(zip(built.search(QUERIES, CANDIDATES), looking.search(QUERIES, CANDIDATES))):
        assert {hit.row for hit in hits} == {hit.row for hit in first}
        places = np.array([hit.row for hit in first])
        scores, added = tokens.rerank(asked[query], places)
        expected = {hit.row: hit.score + more for hit, more in zip(first, added)}
        token_scores = dict(zip(places.tolist(), scores))
        for hit in hits:
            assert hit.score == pytest.approx(expected[hit.row], abs=1e-3)
            assert hit.token_score == pytest.approx(token_scores[hit.row], abs=1e-3)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert all(hit.token_score is None for hit in built.search("the dog"))


@pytest.mark.parametrize("row", [-1, 150])
def test_a_row_that_does_not_exist(looking, row):
    with raises_usage("rows"):
        looking.rerank("dog", [0, row])


@pytest.mark.parametrize("k", [1, 10, CANDIDATES, CANDIDATES + 20, 1_000])
def test_number_of_hits(looking, k):
    hits = looking.search("the old dog", k)
    assert len(hits) == min(k, 150)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert all(hit.token_score is not None for hit in hits)


def test_vectors_are_those_of_an_index_without(looking, built):
    np.testing.assert_allclose(looking.vectors, built.vectors, atol=1e-3)
    assert looking.bm25.scores(QUERIES).tolist() == built.bm25.scores(QUERIES).tolist()


def test_saved(looking, tmp_path):
    looking.save(tmp_path)
    loaded = Index.load(tmp_path)
    assert loaded.record.rerank and loaded.search(QUERIES) == looking.search(QUERIES)
    assert isinstance(loaded._state.tokens.rows.base, np.memmap) and loaded._state.tokens.rows.dtype == np.int8
    (rows,) = tmp_path.glob(f"{DATA}*/tokens/rows.npy")
    rows.write_bytes(rows.read_bytes()[:-10])
    with raises_usage("index"):
        Index.load(tmp_path)


def test_added_and_removed(looking, st_mean, texts, tmp_path):
    index = Index(looking.model, looking._state)
    index.add(["a big street", "the river sleeps"])
    index.remove([3, 150])
    index.save(tmp_path)
    index = Index.load(tmp_path)
    kept = [*texts[:3], *texts[4:], "the river sleeps"]
    tokens = index._state.tokens
    _, expected = embed_documents(index.model, kept, projection=tokens.projection)
    for name in ("starts", "ids", "frequencies"):
        np.testing.assert_array_equal(getattr(tokens, name), getattr(expected, name))
    np.testing.assert_allclose(tokens.rows, expected.rows, atol=1)  # batches differ in rounding
    assert len(index.search("river", 3)) == 3


@pytest.mark.parametrize("queries", ["model", "static"])
def test_an_index_that_began_with_few_texts(st_mean, texts, tmp_path, queries):
    """The projection of three texts would stay."""
    index = Index.build(st_mean, texts[:3], rerank=True, queries=queries)
    index.add(texts[3:5])
    index.save(tmp_path)
    index = Index.load(tmp_path)
    index.add(texts[5:])
    fresh = Index.build(st_mean, texts, rerank=True, queries=queries)
    np.testing.assert_allclose(index._state.tokens.rows, fresh._state.tokens.rows, atol=1)
    hits, expected = index.search(QUERIES[0]), fresh.search(QUERIES[0])
    assert [hit.row for hit in hits] == [hit.row for hit in expected]
    index.add(texts[:20])
    np.testing.assert_array_equal(index._state.tokens.projection.center, fresh._state.tokens.projection.center)


def test_tokens_of_removed_texts_are_erased(looking, tmp_path):
    index = Index(looking.model, looking._state)
    rare = "quickly"
    index.remove([row for row, text in zip(index.rows, index.texts) if rare in text.split()])
    index.save(tmp_path)
    number = index.model.tokenizer.convert_tokens_to_ids(rare)
    tokens = Index.load(tmp_path)._state.tokens
    assert number not in tokens.ids and not tokens.frequencies[number : number + 1].any()
    assert len(tokens.rows) == len(tokens.ids) == tokens.starts[-1]


def test_prompts_do_not_count(st_mean, texts):
    index = Index.build(st_mean, texts, rerank=True, document_prompt="a cat ", query_prompt="the dog ")
    plain = Index.build(st_mean, texts, rerank=True)
    np.testing.assert_array_equal(index._state.tokens.ids, plain._state.tokens.ids)
    embedded = index._embedded(index._state, ["house"])
    assert index.model.tokenizer.convert_ids_to_tokens(embedded.tokens[0][0].tolist()) == ["house"]


def test_smoothed(st_mean, texts):
    index = Index.build(st_mean, texts, rerank=True, smooth=True)
    assert all(hit.token_score is not None for hit in index.search("the old dog"))


def test_a_model_without_token_vectors(st_mean, texts):
    from torch import nn

    class Api(nn.Module):
        """A model of vectors alone."""

        def forward(self, features):
            return features

        def preprocess(self, texts, **_):
            return {"sentence_embedding": np.zeros((len(texts), 4))}

    model = SentenceTransformer(modules=[Api()], device="cpu")
    with raises_usage("rerank"):
        Index.build(model, texts, rerank=True)
    assert token_vector_bytes(model, texts) is None


@pytest.fixture(scope="module")
def static_index(tmp_path_factory, texts) -> Index:
    """An index of a model whose tokens are letters, so that words are added as tokens. Tests must not change it."""
    model = tmp_path_factory.mktemp("letters")
    save_letters(model)
    return Index.build(model, texts, queries="static", rerank=True)


def means_of(index: Index) -> dict[int, np.ndarray]:
    """Return the mean vector of each token in the texts of an index, with unit length."""
    tokens = index._state.tokens
    rows = tokens.rows / np.linalg.norm(tokens.rows.astype(float), axis=1, keepdims=True)
    means = {number: rows[tokens.ids == number].mean(0) for number in np.unique(tokens.ids)}
    return {number: mean / np.linalg.norm(mean) for number, mean in means.items()}


def check_token_scores(index: Index, query: str) -> None:
    """Check that the token scores of all hits are those of the mean vectors of the query's tokens in the texts."""
    means = means_of(index)
    split = tokenizer_of(index.model).encode(query, add_special_tokens=False).ids
    ids = np.array([number for number in split if number in means])
    vectors = np.array([means[number] for number in ids])
    hits = index.search(query, CANDIDATES)
    places = np.searchsorted(index.rows, [hit.row for hit in hits])
    expected = index._state.tokens.scores((ids, vectors), places)
    np.testing.assert_allclose([hit.token_score for hit in hits], expected, atol=1e-3)
    assert expected.std() > 0


@pytest.mark.parametrize("query", QUERIES)
def test_without_a_model_tokens_of_queries_have_their_mean_vector_in_the_texts(static_index, query):
    assert {"dog", "house"} <= set(static_index.static_queries.tokenizer.get_vocab())
    assert not {"dog", "house"} & set(tokenizer_of(static_index.model).get_vocab())
    check_token_scores(static_index, query)
    state = static_index._state
    plain = Index(None, replace(state, tokens=None, static_queries=replace(state.static_queries, means=None)))
    first = plain.search(query, CANDIDATES)
    places = np.array([hit.row for hit in first])
    _, added = state.tokens.rerank(state.static_queries.tokens([query])[0], places)
    hits = {hit.row: hit.score for hit in static_index.search(query, CANDIDATES)}
    assert hits == pytest.approx({hit.row: hit.score + more for hit, more in zip(first, added)}, abs=1e-4)


def test_static_queries_without_the_tokens_of_a_query(static_index):
    hits = static_index.search("\N{SNOWMAN}", 3)
    assert [hit.token_score for hit in hits] == [0] * 3


def test_static_queries_are_saved_and_searched_without_the_model(static_index, tmp_path):
    static_index.save(tmp_path)
    index = Index.load(tmp_path)
    assert index.search(QUERIES) == static_index.search(QUERIES)
    assert index.rerank("dog", [2, 5]).tolist() == static_index.rerank("dog", [2, 5]).tolist()
    assert index._model is None and isinstance(index.static_queries.means, np.memmap)


def test_static_queries_after_texts_were_added_and_removed(static_index, tmp_path):
    static_index.save(tmp_path / "index")
    index = Index.load(tmp_path / "index")
    index.remove([0, 4])
    assert index._model is None, "removing texts does not open the model"
    index.add(["a quark", "the quark sleeps"])
    index.save(tmp_path / "index")
    index = Index.load(tmp_path / "index")
    for query in (*QUERIES, "quark"):
        check_token_scores(index, query)


def test_mean_vectors_of_erased_tokens_are_zeros(static_index, tmp_path):
    index = Index(static_index.model, static_index._state)
    letter = min(set("abcdefghijklmnopqrstuvwxyz") - set("".join(index.texts)))
    rows = index.add([f"a{letter}"])
    (number,) = set(index._state.tokens.ids) - set(static_index._state.tokens.ids)
    assert index.static_queries.means[number].any()
    index.remove(rows)
    index.save(tmp_path)
    means = Index.load(tmp_path).static_queries.means
    assert not means[number : number + 1].any()
    np.testing.assert_array_equal(means, static_index.static_queries.means)


def test_cost(looking, texts, tmp_path):
    looking.save(tmp_path)
    (folder,) = tmp_path.glob(f"{DATA}*/tokens")
    size = sum((folder / name).stat().st_size for name in ("ids.npy", "rows.npy"))
    tokens = len(looking._state.tokens.ids)
    wide = looking._state.tokens.rows.shape[1]  # fewer directions than usual, because the model is narrow
    assert size == pytest.approx(tokens * (wide + 4), abs=300)
    special = 2 * len(texts)
    assert token_vector_bytes(looking.model, texts) == (tokens + special) * late_interaction.BYTES


def test_command(st_mean, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("\n".join(make_sentences(30)))
    options = ["--model_name", str(st_mean), "--train_file", str(tmp_path / "texts.txt")]
    assert run_command("index", *[*options, "--output_dir", str(tmp_path / "plain")]) == 0
    assert "--rerank" in capsys.readouterr().out
    assert run_command("index", *[*options, "--output_dir", str(tmp_path / "looking"), "--rerank"]) == 0
    assert "--rerank" not in capsys.readouterr().out
    assert Index.load(tmp_path / "looking").search("the dog")[0].token_score is not None
