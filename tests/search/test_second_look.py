"""An index with a second look: hits, saving, adding, removing, and models without token vectors."""

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from informin.cli import index as index_command
from informin.evaluation import tokens as tokens_module
from informin.evaluation.tokens import CANDIDATES, embed_documents, embed_queries
from informin.search.derived import second_look_bytes
from informin.search.files import DATA
from informin.search.index import Index
from tests.conftest import make_sentences, raises_usage
from tests.search.test_index import QUERIES


@pytest.fixture(scope="module")
def looking(st_mean, texts) -> Index:
    """Tests must not change it."""
    return Index.build(st_mean, texts, second_look=True)


def test_the_first_hits_are_reordered_by_their_tokens(looking, built):
    tokens = looking._state.tokens
    _, asked = embed_queries(looking.model, QUERIES, tokens.projection)
    for query, (first, hits) in enumerate(zip(built.search(QUERIES, CANDIDATES), looking.search(QUERIES, CANDIDATES))):
        assert {hit.row for hit in hits} == {hit.row for hit in first}
        places = np.array([hit.row for hit in first])
        scores, added = tokens.second_look(asked[query], places)
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
        looking.second_look("dog", [0, row])


@pytest.mark.parametrize("k", [1, 10, CANDIDATES, CANDIDATES + 20, 1_000])
def test_number_of_hits(looking, k):
    hits = looking.search("the old dog", k)
    assert len(hits) == min(k, 150)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert all(hit.token_score is not None for hit in hits)


def test_vectors_are_those_of_an_index_without(looking, built):
    np.testing.assert_allclose(looking.vectors, built.vectors, atol=1e-3)
    assert looking.words.scores(QUERIES).tolist() == built.words.scores(QUERIES).tolist()


def test_saved(looking, tmp_path):
    looking.save(tmp_path)
    loaded = Index.load(tmp_path)
    assert loaded.record.second_look and loaded.search(QUERIES) == looking.search(QUERIES)
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
    for name in ("starts", "ids", "rows", "frequencies"):
        np.testing.assert_array_equal(getattr(tokens, name), getattr(expected, name))
    assert len(index.search("river", 3)) == 3


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
    index = Index.build(st_mean, texts, second_look=True, prompt="a cat ", query_prompt="the dog ")
    plain = Index.build(st_mean, texts, second_look=True)
    np.testing.assert_array_equal(index._state.tokens.ids, plain._state.tokens.ids)
    embedded = index._embedded(index._state, ["house"])
    assert index.model.tokenizer.convert_ids_to_tokens(embedded.tokens[0][0].tolist()) == ["house"]


def test_smoothed(st_mean, texts):
    index = Index.build(st_mean, texts, second_look=True, smooth=True)
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
    with raises_usage("second_look"):
        Index.build(model, texts, second_look=True)
    assert second_look_bytes(model, texts) is None


def test_a_table_for_queries_has_no_tokens(st_mean, texts):
    with raises_usage("second_look"):
        Index.build(st_mean, texts, second_look=True, queries="table")


def test_cost(looking, texts, tmp_path):
    looking.save(tmp_path)
    (folder,) = tmp_path.glob(f"{DATA}*/tokens")
    size = sum((folder / name).stat().st_size for name in ("ids.npy", "rows.npy"))
    tokens = len(looking._state.tokens.ids)
    wide = looking._state.tokens.rows.shape[1]  # fewer directions than usual, because the model is narrow
    assert size == pytest.approx(tokens * (wide + 4), abs=300)
    special = 2 * len(texts)
    assert second_look_bytes(looking.model, texts) == (tokens + special) * tokens_module.BYTES


def test_command(st_mean, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("\n".join(make_sentences(30)))
    options = ["--model_name", str(st_mean), "--train_file", str(tmp_path / "texts.txt")]
    assert index_command.main([*options, "--output_dir", str(tmp_path / "plain")]) == 0
    assert "--second_look" in capsys.readouterr().out
    assert index_command.main([*options, "--output_dir", str(tmp_path / "looking"), "--second_look"]) == 0
    assert "--second_look" not in capsys.readouterr().out
    assert Index.load(tmp_path / "looking").search("the dog")[0].token_score is not None
