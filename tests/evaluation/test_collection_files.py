"""The reader of test collections: both layouts are checked alike, and as strictly as files of pairs."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from informin.evaluation.retrieval import Collection, load_collection, make_collection
from tests.conftest import raises_usage
from tests.evaluation.test_collections import ranked

TEXTS = ["red stone", "blue lake", "old bread"]
COLUMNS = {"beir": ("query-id", "corpus-id"), "tables": ("query", "document")}
LAYOUTS = pytest.mark.parametrize("layout", COLUMNS)


@pytest.fixture
def load(tmp_path) -> Callable[..., Collection]:
    """Return a function that writes a collection and loads it. By default q1 and q2 ask for d1 and d2."""

    def load(layout: str, judged: str = "q1 d1\nq2 d2", documents=None, queries=None) -> Collection:
        folder = tmp_path / layout
        beir = layout == "beir"
        (folder / "qrels").mkdir(parents=True, exist_ok=True)
        documents = documents or [{"_id": f"d{i}", "text": text} for i, text in enumerate(TEXTS, start=1)]
        queries = queries or [{"_id": "q1", "text": "red"}, {"_id": "q2", "text": "lake"}]
        for name, rows in (("corpus", documents), ("queries", queries)):
            write(folder / f"{name}.{'jsonl' if beir else 'tsv'}", rows)
        first, _, rest = judged.partition("\n")
        if first.startswith("q1"):
            first, rest = "", judged
        lines = [" ".join([*COLUMNS[layout], *first.split()]), *rest.split("\n")]
        text = "\n".join(lines).replace(" ", "\t") + "\n"
        (folder / ("qrels/test.tsv" if beir else "qrels.tsv")).write_text(text)
        return load_collection(folder)

    return load


def write(path: Path, rows: list[dict]) -> None:
    """Write rows as JSON Lines, or as a table whose column `id` has their `_id`."""
    if path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
        return
    header = [name.replace("_id", "id") for name in rows[0]]
    path.write_text("\n".join("\t".join(map(str, cells)) for cells in (header, *(row.values() for row in rows))) + "\n")


@LAYOUTS
@pytest.mark.parametrize("column", ["relevance", "score"])
def test_grades_are_in_either_column(load, layout, column):
    found = load(layout, f"{column}\nq1 d1 2\nq1 d2 0\nq2 d2 1.0\nq2 d3 -2")
    assert found.grades == [{0: 2}, {1: 1}]
    both = load(layout, "relevance score\nq1 d1 2 2\nq2 d2 1 1")
    assert both.grades == found.grades == [{0: 2}, {1: 1}] and load(layout).grades == [{0: 1}, {1: 1}]


@LAYOUTS
@pytest.mark.parametrize(
    "judged",
    [
        "score\nq1 d1 0.8",
        "relevance\nq1 d1 1\nq2 d2 1.9",
        "score\nq1 d1 1001",
        "score\nq1 d1 nan",
        "score\nq1 d1 ",
        "score\nq1 d1",
        "relevance score\nq1 d1 1 0",
        "score\nq1 d1 1\nq1 d1 2",
        "score\nq1 d1 1\nq1 d1 0",
        "grade\nq1 d1 0",
        "Score\nq1 d1 0",
        "note\nq1 d1 0",
        "score\nq1 d9 1",
        "score\nq9 d1 1",
        "score\nq1 d1 0",
    ],
)
def test_unclear_judgments_are_rejected(load, layout, judged):
    with raises_usage():
        load(layout, judged)


@LAYOUTS
def test_judgments_without_a_header_are_rejected(load, tmp_path, layout):
    load(layout)
    file = tmp_path / layout / ("qrels/test.tsv" if layout == "beir" else "qrels.tsv")
    file.write_text("q1\t0\td1\t1\n")
    with raises_usage(option="retrieval"):
        load_collection(tmp_path / layout)


@LAYOUTS
@pytest.mark.parametrize("side", ["documents", "queries"])
def test_a_text_column_of_another_name_is_rejected(load, layout, side):
    ids = {"documents": ["d1", "d2"], "queries": ["q1", "q2"]}[side]
    with raises_usage(option="retrieval", found="'text'"):
        load(layout, **{side: [{"_id": name, "passage": "red"} for name in ids]})


@pytest.mark.parametrize("key", ["text", "title"])
@pytest.mark.parametrize("value", [3, True, ["a"], {"a": 1}])
def test_text_that_is_no_string_is_rejected(load, key, value):
    with raises_usage(found="'d2'"):
        load("beir", documents=[{"_id": "d1", "text": "red"}, {"_id": "d2", "text": "blue"} | {key: value}])


@LAYOUTS
def test_titles_come_before_texts(load, layout):
    rows = [("d1", "Stones", "red"), ("d2", "", "blue lake"), ("d3", "Bread", "")]
    found = load(layout, documents=[dict(zip(("_id", "title", "text"), row)) for row in rows])
    assert found.documents == ["Stones red", "blue lake", "Bread"]


@LAYOUTS
def test_a_few_empty_documents_are_counted_and_most_are_refused(load, layout, caplog):
    texts = ["red", "lake", "bread", "", "\u00a0"]
    rows = [{"_id": f"d{i}", "text": text} for i, text in enumerate(texts, start=1)]
    assert load(layout, documents=rows).documents == ["red", "lake", "bread", "", ""]
    assert "2 of 5 documents have no text." in caplog.text
    with raises_usage(found="2 of 3 documents have no text"):
        load(layout, documents=[rows[0], {"_id": "d2", "text": ""}, rows[3]], judged="q1 d1")
    with raises_usage(found="the query 'q2' has no text"):
        load(layout, queries=[{"_id": "q1", "text": "red"}, {"_id": "q2", "text": " "}])


def test_numbers_are_ids(load):
    rows = [{"_id": 7, "text": "a"}, {"_id": 2.0, "text": "b"}]
    assert load("beir", "q1 2", documents=rows).grades == [{0: 1}]
    with raises_usage(found="'2' occurs twice"):
        load("beir", documents=[rows[1], {"_id": "2", "text": "a"}])
    with raises_usage(found="no id"):
        load("beir", documents=[rows[1], {"_id": None, "text": "a"}])


def own(documents: int) -> Collection:
    """A collection with one query, whose own document is judged relevant, as is the last one."""
    texts = {f"d{i}": f"text {i}" for i in range(documents - 1)} | {"q": "text 1"}
    return make_collection("own", texts, {"q": "text 1"}, {("q", "q"): 1, ("q", "d0"): 1}, shared_ids=True)


@pytest.mark.parametrize("documents", [4, 100, 101, 150])
def test_the_document_with_the_id_of_the_query_counts_as_not_found(documents, caplog):
    """As in BEIR: it is in no ranking, and its judgment remains."""
    collection = own(documents)
    assert "1 relevant document with the id of the query, never found" in caplog.text
    ranking = ranked(collection)
    itself = collection.documents.index("text 1", 2)
    assert itself == documents - 1 and itself not in ranking and (ranking == -1).sum() == (documents <= 100)
    best = sorted(ranking[0].tolist(), key=lambda document: document != 0)
    scores = collection.scores(np.array([best]))
    assert scores["map_100"] == 50 and scores["recall_100"] == 50 and 0 < scores["ndcg_10"] < 100


def test_nothing_depends_on_the_order_of_the_documents():
    """Not even equal cosines."""
    source = np.random.default_rng(0)
    words = ["red", "lake", "stone", "bread"]
    documents = {f"d{i}": " ".join(source.choice(words, size=3)) for i in range(60)}
    queries = {f"q{i}": word for i, word in enumerate([*words, "unknown"])}
    judged = {(f"q{i}", f"d{11 * i + 3}"): 1 for i in range(5)}

    def rankings(order: list[str], depth: int) -> list[list[int]]:
        chosen = {name: documents[name] for name in order}
        collection = make_collection("c", chosen, queries, judged, shared_ids=False)
        return ranked(collection, depth).tolist()

    for depth in (10, 60):
        names = list(documents)
        expected = rankings(names, depth)
        assert all(rankings(list(source.permutation(names)), depth) == expected for _ in range(3))
