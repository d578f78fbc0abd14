"""Retrieval metrics against plain loops, closed forms, trec_eval and invariances."""

import numpy as np
import pytest
from pytrec_eval import RelevanceEvaluator

from informin.errors import UndefinedScoreError
from informin.evaluation import retrieval as collections
from informin.evaluation.measures import SEARCH
from informin.evaluation.retrieval import Collection, load_retrieval_pairs
from tests.conftest import raises_usage
from tests.evaluation.test_labels import cosine, encoder, write

HEADER = "query\tdocument\n"
GRADED = "query\tdocument\trelevance\n"


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
def test_load_retrieval_pairs(tmp_path, name, content):
    pairs = load_retrieval_pairs(write(tmp_path / name, content))
    assert (pairs.name, pairs.queries, pairs.documents) == (name, ["a", "c"], ["B", "D", "N"])
    assert pairs.grades == [{0: 1}, {1: 1}] and pairs.texts() == ["a", "c", "B", "D", "N"]
    assert pairs.counts == {"kind": "retrieval", "n": 2, "documents": 3}


@pytest.mark.parametrize(
    "content, option",
    [
        (None, "retrieval"),
        ("query\tanswer\na\tb\n", "retrieval"),
        (HEADER + "a\t\n", None),
        (HEADER, "retrieval"),
        (GRADED + "a\tb\thigh\n", None),
        (GRADED + "a\tb\t0.5\n", None),
        (GRADED + "a\tb\t\n", None),
        (GRADED + "a\tb\t1001\n", None),
        (GRADED + "a\tb\t1\na\tb\t2\n", None),
        (GRADED + "a\tb\t0\na\tc\t-1\n", "retrieval"),
        ("query\tdocument\tgrade\na\tb\t0\n", None),
        ("query\tdocument\tRelevance\na\tb\t0\n", None),
        ("query\tdocument\tscore\trelevance\na\tb\t1\t2\n", None),
    ],
)
def test_unusable_files_are_rejected(tmp_path, content, option):
    if content is not None:
        write(tmp_path / "a.tsv", content)
    with raises_usage(option=option):
        load_retrieval_pairs(tmp_path / "a.tsv", "retrieval")


@pytest.mark.parametrize(
    "row", ['"document": ["b"]', '"document": "b", "negative": 3', '"document": "b", "score": "x"']
)
def test_unusable_values_of_json_are_rejected(tmp_path, row):
    with raises_usage():
        load_retrieval_pairs(write(tmp_path / "a.jsonl", f'{{"query": "a", {row}}}'))


def test_keys_of_late_rows_are_columns(tmp_path):
    """The columns were the keys of the first 1,000 rows, and documents that are not relevant counted as relevant."""
    rows = "".join(f'{{"query": "q{i}", "document": "d{i}"}}\n' for i in range(1_001))
    more = '{"query": "q", "document": "d", "negative": "n"}'
    assert "n" in load_retrieval_pairs(write(tmp_path / "a.jsonl", rows + more)).documents
    with raises_usage(found="found relevance None"):
        load_retrieval_pairs(write(tmp_path / "a.jsonl", rows + '{"query": "q0", "document": "d1", "relevance": 0}'))


def test_queries_without_a_relevant_document_are_left_out(tmp_path, caplog):
    rows = "a\tA\t2\na\tB\t0\nb\tB\t-1\nb\tC\t1\nc\tA\t0\n"
    pairs = load_retrieval_pairs(write(tmp_path / "a.tsv", GRADED + rows))
    assert (pairs.queries, pairs.grades) == (["a", "b"], [{0: 2}, {2: 1}]) and pairs.documents == ["A", "B", "C"]
    assert pairs.counts["n"] == 2 and "c" not in pairs.texts()
    assert "1 of 3 queries have no relevant document." in caplog.text
    with pytest.raises(UndefinedScoreError, match="no query has a relevant document"):
        Collection.of_pairs("s", ["q"], ["a"], ["b"], [0]).score(encoder({}))


def test_relevance_is_part_of_the_checksum():
    plain, ones, graded, others = (
        Collection.of_pairs("s", ["q", "q"], ["a", "b"], [], grades) for grades in (None, [1, 1], [1, 2], [0, 1])
    )
    assert plain.sha256 == ones.sha256 and len({plain.sha256, graded.sha256, others.sha256}) == 3
    known = "d9e8a89b1358b5ed696cc8e9199fdc3cb526f0c7d0035b051d241e87fb75387f"  # also stored in training.json
    assert plain.sha256 == known


@pytest.mark.parametrize("documents, grades", [("aa", [2, 1]), ("aa", [1, 0]), ("ab", [1, np.nan])])
def test_contradicting_and_missing_grades_of_an_object_are_rejected(documents, grades):
    with raises_usage(found="row 1"):
        Collection.of_pairs("s", ["q", "q"], list(documents), [], grades)


def search(seed: int = 0):
    """40 queries near their documents. Two have a second relevant document, and three are also documents."""
    source = np.random.default_rng(seed)
    queries, documents = [f"q{i}" for i in range(40)], [f"d{i}" for i in range(40)]
    vectors = {text: source.normal(size=12) for text in [*documents, "n0", "n1", "n2"]}
    vectors |= {query: vectors[document] + source.normal(size=12) for query, document in zip(queries, documents)}
    pairs = Collection.of_pairs(
        "s", [*queries, "q3", "q4"], [*documents, "d9", "d8"], ["n0", "n1", "n2", "q1", "q2", "d5"]
    )
    return pairs, vectors


def test_scores_equal_plain_loops(monkeypatch):
    pairs, vectors = search()
    lists, calls = [], []
    for query, grades in zip(pairs.queries, pairs.grades):
        right = {pairs.documents[i] for i in grades}
        others = [document for document in pairs.documents if document != query]
        order = sorted(others, key=lambda document: -cosine(vectors[query], vectors[document]))
        lists.append((sorted(order.index(document) + 1 for document in right), len(right)))
    expected = {
        "mrr_10": [1 / ranks[0] if ranks[0] <= 10 else 0 for ranks, _ in lists],
        "ndcg_10": [
            sum(1 / np.log2(rank + 1) for rank in ranks if rank <= 10)
            / sum(1 / np.log2(rank + 1) for rank in range(1, n + 1))
            for ranks, n in lists
        ],
        "map_100": [sum(i / rank for i, rank in enumerate(ranks, start=1)) / n for ranks, n in lists],
        "recall_10": [sum(rank <= 10 for rank in ranks) / n for ranks, n in lists],
        "recall_100": [1.0 for _ in lists],
        "accuracy_1": [ranks[0] == 1 for ranks, _ in lists],
        "accuracy_10": [ranks[0] <= 10 for ranks, _ in lists],
    }
    expected = {name: 100 * np.mean(values) for name, values in expected.items()}
    assert list(expected) == list(SEARCH)
    assert 0 < expected["accuracy_1"] < expected["recall_10"] < expected["accuracy_10"] < 100
    assert pairs.score(encoder(vectors, calls)) == pytest.approx(expected)
    assert calls == [pairs.texts()], "encoded once"
    for block in (1, 130):
        monkeypatch.setattr(collections, "PAIRS_AT_ONCE", block)
        assert pairs.score(encoder(vectors)) == pytest.approx(expected)


TREC = {
    "mrr_10": "recip_rank",
    "ndcg_10": "ndcg_cut_10",
    "map_100": "map_cut_100",
    "recall_10": "recall_10",
    "recall_100": "recall_100",
    "accuracy_1": "success_1",
    "accuracy_10": "success_10",
}


def trec_scores(pool: list[str], rows: dict[tuple[str, str], int], vectors: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the scores computed by trec_eval for queries with a relevant document."""
    names = {document: f"{len(pool) - i:06}" for i, document in enumerate(pool)}  # of equal ones its last name is first
    judged: dict[str, dict[str, int]] = {}
    for (query, document), grade in rows.items():
        judged.setdefault(query, {})[names[document]] = grade
    judged = {query: grades for query, grades in judged.items() if any(grades.values())}
    run = {}
    for query in judged:
        itself = {query} - {document for document in pool if judged[query].get(names[document])}
        cosines = {names[d]: round(cosine(vectors[query], vectors[d]), 6) for d in pool if d not in itself}
        run[query] = cosines
    found = RelevanceEvaluator(judged, set(TREC.values()) - {"recip_rank"}).evaluate(run)
    tops = {query: dict(sorted(own.items(), key=lambda x: (x[1], x[0]))[-10:]) for query, own in run.items()}
    first = RelevanceEvaluator(judged, {"recip_rank"}).evaluate(tops)
    return {
        ours: 100 * np.mean([(first if theirs == "recip_rank" else found)[query][theirs] for query in judged])
        for ours, theirs in TREC.items()
    }


@pytest.mark.parametrize("documents", [5, 8, 60, 400])
@pytest.mark.parametrize("highest", [1, 3])
@pytest.mark.parametrize("tied", [False, True])
def test_scores_equal_trec_eval(documents, highest, tied):
    """Graded documents, small and large collections, over 100 relevant documents, ties, queries without any."""
    source = np.random.default_rng([documents, highest, tied])
    names, queries = [f"d{i}" for i in range(documents)], [f"q{i}" for i in range(30)]
    rows = {}
    for i, query in enumerate(queries):  # of the last three none is relevant
        size = source.integers(1, max(2, documents * (i % 3) // 2))
        for document in source.choice(names, min(size, documents), replace=False):
            rows[query, document] = int(source.integers(0, highest + 1)) if i < 27 else 0
    rows |= {(queries[0], name): 1 for name in names[: documents // 2]}
    several = list(rows)
    pairs = Collection.of_pairs(
        "s", [q for q, _ in several], [d for _, d in several], [*names, "q0", "q1"], [*rows.values()]
    )
    draw = (lambda: source.choice([-1.0, 1.0], 4)) if tied else (lambda: source.normal(size=16))
    vectors = {text: draw() for text in [*queries, *names]}
    expected = trec_scores(pairs.documents, rows, vectors)
    assert list(expected) == list(SEARCH) and 0 < expected["ndcg_10"] < 100
    assert documents < 400 or max(map(len, pairs.grades)) > 100
    assert pairs.score(encoder(vectors)) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def at(rank: int, documents: int = 12) -> dict[str, float]:
    """Return the scores of a query whose document has the given rank."""
    names = [f"d{i}" for i in range(documents)]
    angles = {name: 0.1 * (i + 1) for i, name in enumerate(names)} | {"q": 0}
    vectors = {name: np.array([np.cos(angle), np.sin(angle)]) for name, angle in angles.items()}
    return Collection.of_pairs("s", ["q"], [names[rank - 1]], names).score(encoder(vectors))


@pytest.mark.parametrize(
    "rank, expected",
    [
        (1, [100, 100, 100, 100, 100, 100, 100]),
        (3, [100 / 3, 50, 100 / 3, 100, 100, 0, 100]),
        (7, [100 / 7, 100 / 3, 100 / 7, 100, 100, 0, 100]),
        (11, [0, 0, 100 / 11, 0, 100, 0, 0]),
    ],
)
def test_one_query_in_closed_form(rank, expected):
    assert list(at(rank).values()) == pytest.approx(expected)


def test_query_is_excluded_from_its_ranking_unless_relevant():
    vectors = {"a": np.array([1.0, 0]), "b": np.array([0.9, 0.1]), "c": np.array([0, 1.0])}
    assert Collection.of_pairs("s", ["a", "b"], ["b", "c"], ["a"]).score(encoder(vectors))["accuracy_1"] == 50
    assert Collection.of_pairs("s", ["a", "b"], ["a", "c"]).score(encoder(vectors))["accuracy_1"] == 50


def test_ties_are_ranked_by_position():
    pairs = Collection.of_pairs("s", ["q", "r"], ["a", "b"])
    found = pairs.score(lambda texts: np.ones((len(texts), 3)))
    assert (found["mrr_10"], found["accuracy_1"], found["accuracy_10"]) == (75, 50, 100)


def test_ties_do_not_favor_the_relevant_document():
    """Of a collapsed model, or a static one and negatives with the same words, it was the first."""
    texts = list("abcdefghij")
    pools = [Collection.of_pairs("s", ["q"], [text], [other for other in texts if other != text]) for text in texts]
    scores = [pool.score(lambda given: np.ones((len(given), 4)))["accuracy_1"] for pool in pools]
    assert np.mean(scores) == 10


def test_embeddings_not_finite_have_no_score():
    with pytest.raises(UndefinedScoreError, match="the embeddings of 4 of 4 sentences are not finite"):
        Collection.of_pairs("s", ["q", "r"], ["a", "b"]).score(lambda texts: np.full((len(texts), 3), np.nan))
