"""Search scores against plain loops, closed forms and invariances."""

import re

import numpy as np
import pytest

from informin.errors import UndefinedScoreError, UsageError
from informin.evaluation import retrieval
from informin.evaluation.measures import SEARCH
from informin.evaluation.retrieval import SearchPairs, load_search_pairs, score_search
from tests.evaluation.test_labels import cosine, encoder, write

HEADER = "query\tdocument\n"


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.tsv", "document\tquery\tnegative\nB\ta\tN\nD\tc\t\n"),
        ("a.csv", "query,document,negative,id\na,B,N,1\nc,D,,2\n"),
        (
            "a.jsonl",
            '{"query": "a", "document": "B", "negative": "N"}\n\n{"query": "c", "document": "D", "negative": null}',
        ),
    ],
)
def test_load_search_pairs(tmp_path, name, content):
    pairs = load_search_pairs(write(tmp_path / name, content))
    assert (pairs.name, pairs.queries, pairs.documents, pairs.negatives) == (name, ["a", "c"], ["B", "D"], ["N"])
    assert pairs.pool() == ["B", "D", "N"] and pairs.texts() == ["a", "c", "B", "D", "N"]
    assert pairs.counts == {"n": 2, "documents": 3}


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.tsv", None, "`triplets`: PATH does not exist"),
        ("a.txt", HEADER, "`triplets`: PATH ends in .txt; needed .tsv, .csv or .jsonl"),
        ("a.tsv", "query\tanswer\na\tb\n", "PATH: no column document in its first line; found query, answer"),
        ("a.tsv", HEADER + "a\t\n", "PATH, line 2: no document. Every row needs query, document"),
        ("a.jsonl", '{"query": "a", "document": ["b"]}', "PATH, line 1: document is ['b']; needed text"),
        ("a.jsonl", '{"query": "a", "document": "b", "negative": 3}', "PATH, line 1: negative is 3; needed text"),
        ("a.tsv", HEADER, "PATH: found 0 different documents; a search needs two or more"),
        ("a.tsv", HEADER + "a\tB\nc\tB\n", "PATH: found 1 different document; a search needs two or more"),
        ("a.tsv", HEADER + "a\ta \nb\tb\n", "PATH: in each of its 2 rows the query is its own document"),
    ],
)
def test_searches_that_cannot_be_used(tmp_path, name, content, message):
    if content is not None:
        write(tmp_path / name, content)
    with pytest.raises(UsageError, match=re.escape(message.replace("PATH", str(tmp_path / name)))):
        load_search_pairs(tmp_path / name, "triplets")


def search(seed: int = 0):
    """40 queries near their documents, two of them with a second one, three that are documents too."""
    source = np.random.default_rng(seed)
    queries, documents = [f"q{i}" for i in range(40)], [f"d{i}" for i in range(40)]
    vectors = {text: source.normal(size=12) for text in [*documents, "n0", "n1", "n2"]}
    vectors |= {query: vectors[document] + source.normal(size=12) for query, document in zip(queries, documents)}
    pairs = SearchPairs("s", [*queries, "q3", "q4"], [*documents, "d9", "d8"], ["n0", "n1", "n2", "q1", "q2", "d5"])
    return pairs, vectors


def test_scores_equal_plain_loops(monkeypatch):
    pairs, vectors = search()
    ranks, calls = [], []
    for query in dict.fromkeys(pairs.queries):
        right = {document for q, document in zip(pairs.queries, pairs.documents) if q == query}
        others = [document for document in pairs.pool() if document != query]
        order = sorted(others, key=lambda document: -cosine(vectors[query], vectors[document]))
        ranks.append(1 + min(order.index(document) for document in right))
    expected = {
        "mrr_10": 100 * np.mean([1 / rank if rank <= 10 else 0 for rank in ranks]),
        "recall_1": 100 * np.mean([rank == 1 for rank in ranks]),
        "recall_10": 100 * np.mean([rank <= 10 for rank in ranks]),
    }
    assert list(expected) == list(SEARCH) and 0 < expected["recall_1"] < expected["recall_10"] < 100
    assert score_search(encoder(vectors, calls), pairs) == pytest.approx(expected)
    assert calls == [pairs.texts()], "encoded once"
    for block in (1, 130):
        monkeypatch.setattr(retrieval, "BLOCK", block)
        assert score_search(encoder(vectors), pairs) == pytest.approx(expected)


def at(rank: int, documents: int = 12) -> dict[str, float]:
    """Scores of one query whose document is so many places down."""
    names = [f"d{i}" for i in range(documents)]
    angles = {name: 0.1 * (i + 1) for i, name in enumerate(names)} | {"q": 0}
    vectors = {name: np.array([np.cos(angle), np.sin(angle)]) for name, angle in angles.items()}
    return score_search(encoder(vectors), SearchPairs("s", ["q"], [names[rank - 1]], names))


@pytest.mark.parametrize(
    "rank, expected", [(1, [100, 100, 100]), (4, [25, 0, 100]), (10, [10, 0, 100]), (11, [0, 0, 0])]
)
def test_one_query_in_closed_form(rank, expected):
    assert list(at(rank).values()) == pytest.approx(expected)


def test_of_several_right_documents_the_nearest_counts():
    vectors = {"q": [1, 0], "far": [0, 1], "other": [0.7, 0.7], "near": [0.9, 0.1]}
    pairs = SearchPairs("s", ["q", "q"], ["far", "near"], ["other"])
    found = score_search(encoder({text: np.array(x, dtype=float) for text, x in vectors.items()}), pairs)
    assert found == {"mrr_10": 100, "recall_1": 100, "recall_10": 100}


def test_a_query_does_not_find_itself_unless_it_is_its_answer():
    vectors = {"a": np.array([1.0, 0]), "b": np.array([0.9, 0.1]), "c": np.array([0, 1.0])}
    assert score_search(encoder(vectors), SearchPairs("s", ["a", "b"], ["b", "c"], ["a"]))["recall_1"] == 50
    assert score_search(encoder(vectors), SearchPairs("s", ["a", "b"], ["a", "c"]))["recall_1"] == 50


def test_scores_do_not_feel_rotation_and_scale():
    pairs, vectors = search()
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(12, 12)))[0]
    turned = {text: 7 * x @ turn for text, x in vectors.items()}
    assert score_search(encoder(turned), pairs) == pytest.approx(score_search(encoder(vectors), pairs))


def test_of_equally_near_documents_the_first_comes_first():
    pairs = SearchPairs("s", ["q", "r"], ["a", "b"])
    found = score_search(lambda texts: np.ones((len(texts), 3)), pairs)
    assert found == {"mrr_10": 75, "recall_1": 50, "recall_10": 100}


def test_embeddings_that_are_not_finite():
    with pytest.raises(UndefinedScoreError, match="the embeddings of 4 of 4 sentences are not finite"):
        score_search(lambda texts: np.full((len(texts), 3), np.nan), SearchPairs("s", ["q", "r"], ["a", "b"]))
