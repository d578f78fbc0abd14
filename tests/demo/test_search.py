"""Nearest sentences, ranks and their changes."""

import builtins
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from informin.demo import index
from informin.demo import search as search_module
from informin.demo.index import ExactIndex, FaissIndex, make_index, scaled_rows
from informin.labeled_sentences import Sentences
from tests.conftest import raises_usage
from tests.demo.helpers import AFTER, BEFORE, LETTERS, search_of


def test_one_model():
    (found,) = search_of(BEFORE)("query", hits=2)
    assert found.model == "model-0" and not found.truncated
    cosines = [1 / np.sqrt(1.01), 1.1 / np.sqrt(2 * 1.01)]
    assert [(hit.text, hit.label, hit.rank, hit.other_rank) for hit in found.hits] == [
        ("a", "1", 1, None),
        ("b", "2", 2, None),
    ]
    assert [hit.similarity for hit in found.hits] == pytest.approx(cosines, abs=1e-6)


def test_two_models_say_the_rank_of_each_sentence_in_the_other():
    before, after = search_of(BEFORE, AFTER)("query")
    assert [(hit.text, hit.rank, hit.other_rank) for hit in before.hits] == [("a", 1, 3), ("b", 2, 1), ("c", 3, 2)]
    assert [(hit.text, hit.rank, hit.other_rank) for hit in after.hits] == [("b", 1, 2), ("c", 2, 3), ("a", 3, 1)]


def test_one_query_at_a_time(monkeypatch):
    """A page asks from several threads, and a tokenizer serves one at a time."""
    inside, most = 0, 0

    def embed(model, query):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.001)
        inside -= 1
        return original(model, query)

    original = search_module._embed
    monkeypatch.setattr(search_module, "_embed", embed)
    search = search_of(BEFORE)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(search, ["a"] * 40))
    assert most == 1


def test_repeated_sentences_are_found_once():
    assert len(search_of(BEFORE)) == 3
    assert [hit.text for hit in search_of(BEFORE)("b", hits=9)[0].hits] == ["b", "a", "c"]


def test_hits_have_the_other_columns():
    columns = {"id": ["7", "8", "9", "10"]}
    (found,) = search_of(BEFORE, sentences=replace(LETTERS, columns=columns))("b", hits=9)
    assert [hit.columns for hit in found.hits] == [{"id": "8"}, {"id": "7"}, {"id": "9"}]


def test_long_queries():
    search = search_of(BEFORE)
    (found,) = search("x" * 61)
    assert found.truncated and search.models[0].encoder.truncated == set()  # a server would collect them
    with raises_usage(found="The query has 100,001 characters", needed="up to 100,000", fix="Shorten it."):
        search("x" * 100_001)


@pytest.mark.parametrize("query", ["\ud800", "a \udfff b", "\ude00\ud83d"])
def test_halves_of_surrogate_pairs(query):
    with raises_usage(found="The query contains half of a surrogate pair", needed="Unicode text"):
        search_of(BEFORE)(query)
    assert search_of(BEFORE)("\U0001f600")


def test_embeddings_that_are_not_finite():
    search = search_of(BEFORE | {"bad": [np.nan, 1.0]})
    with raises_usage(found="model-0 gives an embedding that is not finite"):
        search("bad")


def test_exact_index_sorts_ties_by_row():
    ranking = ExactIndex(np.array([[0, 1], [1, 0], [1, 0], [-1, 0]], np.float32)).rank(np.array([1, 0], np.float32))
    rows, cosines = ranking.nearest(3)
    assert rows.tolist() == [1, 2, 0] and cosines.tolist() == [1, 1, 0]
    assert [ranking.rank_of(row) for row in range(4)] == [3, 1, 2, 4]
    assert ranking.nearest(1)[0].tolist() == [1], "the first of equal rows"
    assert len(ranking.nearest(10)[0]) == 4


def test_unit_rows_of_blocks(monkeypatch):
    monkeypatch.setattr(index, "ROWS_AT_ONCE", 3)
    vectors = np.random.default_rng(0).normal(size=(8, 4))
    expected = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert np.allclose(scaled_rows(vectors), expected) and scaled_rows(vectors).dtype == np.float32
    assert np.allclose(scaled_rows(vectors, [5, 0, 5, 7]), expected[[5, 0, 5, 7]])


def test_faiss_above_the_limit():
    """It finds most of the exact neighbors, with the same cosines."""
    pytest.importorskip("faiss")
    draw = np.random.default_rng(0)
    centers = draw.normal(size=(50, 16))
    vectors = scaled_rows(centers[draw.integers(0, 50, 4_000)] + 0.3 * draw.normal(size=(4_000, 16)))
    exact, near = make_index(vectors), make_index(vectors, most_exact=3_999)
    assert isinstance(exact, ExactIndex) and isinstance(near, FaissIndex)
    found = []
    for query in vectors[:50]:
        rows, cosines = exact.rank(query).nearest(10)
        ranking = near.rank(query)
        near_rows, near_cosines = ranking.nearest(10)
        found.append(len({*rows} & {*near_rows}))
        assert near_rows[0] == rows[0] and near_cosines[0] == pytest.approx(cosines[0], abs=1e-5)
        assert ranking.rank_of(near_rows[4]) == 5
    assert np.mean(found) > 9
    far = exact.rank(vectors[0]).nearest(4_000)[0][-1]
    assert near.rank(vectors[0]).rank_of(far) is None


def test_faiss_is_missing(monkeypatch):
    def without(name, *rest):
        if name == "faiss":
            raise ImportError(name)
        return found(name, *rest)

    found = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", without)
    with raises_usage(found="2 sentences", needed="the package faiss-cpu", fix="the extra `search`"):
        make_index(np.eye(2, dtype=np.float32), most_exact=1)


def test_a_query_without_a_relevant_sentence():
    source = np.random.default_rng(0)
    topics = np.repeat(source.normal(size=(20, 16)), 10, axis=0)
    rows = (topics + 0.4 * source.normal(size=topics.shape)).tolist()
    table = {f"sentence {i}": row for i, row in enumerate(rows)}
    table |= {"": source.normal(size=16).tolist(), "known": rows[0]}
    sentences = Sentences([name for name in table if name.startswith("sentence")], None)
    search = search_of(table, sentences=sentences)
    (known,), (unknown,) = search("known"), search("unknown")
    assert known.threshold == unknown.threshold == search.thresholds[0]
    assert not known.nothing_relevant and known.hits[0].text == "sentence 0"
    assert unknown.nothing_relevant and len(unknown.hits) == 10


def test_few_sentences_have_no_threshold():
    (found,) = search_of(BEFORE)("query")
    assert found.threshold is None and not found.nothing_relevant
