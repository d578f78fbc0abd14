"""The reader of test collections: both layouts and mteb tasks are checked alike, and as strictly as files of pairs."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from informin.errors import UsageError
from informin.evaluation.collections import Collection, load_collection, load_retrieval_pairs, make_collection
from informin.evaluation.mteb_tasks import load_mteb_task
from informin.evaluation.retrieval_table import bm25_search, fused_ranking
from tests.evaluation.test_collections import fake_mteb, random_encode

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
    ("judged", "message"),
    [
        ("score\nq1 d1 0.8", "line 2: the score is 0.8; expected an integer from -1,000 to 1,000"),
        ("relevance\nq1 d1 1\nq2 d2 1.9", "line 3: the relevance is 1.9; expected an integer"),
        ("score\nq1 d1 1001", "line 2: the score is 1001; expected an integer"),
        ("score\nq1 d1 nan", "line 2: the score is 'nan'; expected a number"),
        ("score\nq1 d1 1_0", "line 2: the score is '1_0'; expected a number"),
        ("score\nq1 d1 true", "line 2: the score is 'true'; expected a number"),
        ("score\nq1 d1 ", "line 2: no score; expected a whole number in every row"),
        ("score\nq1 d1", "line 2: no score; expected a whole number in every row"),
        ("relevance score\nq1 d1 1 0", "line 2: relevance 1 contradicts score 0"),
        ("score\nq1 d1 1\nq1 d1 2", "line 3: relevance 2 contradicts an earlier row for the same query and document"),
        ("score\nq1 d1 1\nq1 d1 0", "line 3: relevance 0 contradicts an earlier row"),
        ("grade\nq1 d1 0", "line 2: the column 'grade' is not read, and there is no column relevance or score"),
        ("Score\nq1 d1 0", "line 2: the column 'Score' is not read"),
        ("note\nq1 d1 0", "line 2: the column 'note' is not read"),
    ],
)
def test_unclear_grades_are_refused(load, layout, judged, message):
    with pytest.raises(UsageError) as info:
        load(layout, judged)
    assert message in str(info.value)


@LAYOUTS
@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("q1\t0\td1\t1\n", "It looks like TREC's format without column names"),
        ("q1 Q0 d1 1\n", "It looks like TREC's format without column names"),
        ("q1\td1\t1\n", "Name the columns in the first line"),
    ],
)
def test_judgments_without_a_header_are_explained(load, tmp_path, layout, lines, message):
    load(layout)
    file = tmp_path / layout / ("qrels/test.tsv" if layout == "beir" else "qrels.tsv")
    file.write_text(lines)
    with pytest.raises(UsageError) as info:
        load_collection(file.parent.parent if layout == "beir" else file.parent)
    assert message in str(info.value) and COLUMNS[layout][0] in str(info.value)


@LAYOUTS
@pytest.mark.parametrize("side", ["documents", "queries"])
def test_a_text_column_of_another_name_is_refused(load, layout, side):
    ids = {"documents": ["d1", "d2"], "queries": ["q1", "q2"]}[side]
    with pytest.raises(UsageError, match=r"no (column )?text.*passage"):
        load(layout, **{side: [{"_id": name, "passage": "red"} for name in ids]})


@pytest.mark.parametrize("side", ["documents", "queries"])
@pytest.mark.parametrize("text", [3, None, True, ["a"], {"a": 1}])
def test_text_that_is_no_string_is_refused(load, side, text):
    first = {"documents": "d1", "queries": "q1"}[side]
    rows = [{"_id": first, "text": "red"}, {"_id": f"{first[0]}2", "text": text}]
    with pytest.raises(UsageError, match=r"line 2: text is .*; expected text"):
        load("beir", **{side: rows})


@pytest.mark.parametrize("key", ["_id", "title", "text"])
def test_half_of_a_surrogate_pair_is_refused(load, key):
    row = {"_id": "d4", "title": "t", "text": "red"} | {key: "red \ud800"}
    with pytest.raises(UsageError, match=r"corpus.jsonl, line 1: '\\ud800' is not valid Unicode"):
        load("beir", documents=[row, *({"_id": f"d{i}", "text": "b"} for i in (1, 2))])


@pytest.mark.parametrize("sizes", [(100_001, 0), (60_000, 60_000)], ids=["text", "title and text"])
def test_long_documents_are_refused_as_in_training(load, sizes):
    row = {"_id": "d1", "text": "a" * sizes[0], "title": "b" * sizes[1]}
    with pytest.raises(UsageError, match=r"line 1: found a text of 1.*expected up to 100,000 characters"):
        load("beir", documents=[row, {"_id": "d2", "text": "b"}])


@LAYOUTS
def test_titles_come_before_texts(load, layout):
    rows = [("d1", "Stones", "red"), ("d2", "", "blue lake"), ("d3", "Bread", "")]
    found = load(layout, documents=[dict(zip(("_id", "title", "text"), row)) for row in rows])
    assert found.documents == ["Stones red", "blue lake", "Bread"]


@pytest.mark.parametrize("title", [3, ["a"]])
def test_titles_must_be_text(load, title):
    with pytest.raises(UsageError, match="line 1: title is"):
        load("beir", documents=[{"_id": "d1", "title": title, "text": "a"}, {"_id": "d2", "text": "b"}])
    rows = [{"_id": f"d{i}", "title": None, "text": "a"} for i in (1, 2)]
    assert load("beir", documents=rows).documents == ["a", "a"]


@LAYOUTS
def test_a_few_empty_documents_are_counted_and_most_are_refused(load, layout, caplog):
    texts = ["red", "lake", "bread", "", "\u00a0"]
    rows = [{"_id": f"d{i}", "text": text} for i, text in enumerate(texts, start=1)]
    assert load(layout, documents=rows).documents[:3] == texts[:3]
    assert "2 of 5 documents have no text." in caplog.text
    with pytest.raises(UsageError, match="2 of 3 documents have no text; expected documents with text"):
        load(layout, documents=[rows[0], {"_id": "d2", "text": ""}, rows[3]], judged="q1 d1")
    with pytest.raises(UsageError, match="the query 'q2' has no text"):
        load(layout, queries=[{"_id": "q1", "text": "red"}, {"_id": "q2", "text": " "}])


def test_short_rows_are_refused(load, tmp_path):
    load("tables")
    (tmp_path / "tables" / "corpus.tsv").write_text("id\ttext\nd1\tred\nd2\n")
    with pytest.raises(UsageError, match="line 3: text is None; expected text"):
        load_collection(tmp_path / "tables")


@pytest.mark.parametrize("name", [1.0, True, ["d1"], {"a": 1}])
def test_ids_are_text_or_whole_numbers(load, name):
    rows = [{"_id": name, "text": "a"}, {"_id": 2, "text": "b"}]
    with pytest.raises(UsageError, match=r"line 1: the id is .*expected text or a whole number"):
        load("beir", documents=rows)
    assert load("beir", "q1 2", documents=[{"_id": 7, "text": "a"}, rows[1]]).grades == [{0: 1}]
    with pytest.raises(UsageError, match="line 2: the id '2' occurs twice"):
        load("beir", documents=[rows[1], {"_id": "2", "text": "a"}])


@pytest.mark.parametrize("column", ["label", "Relevance", "grade"])
def test_pairs_with_grades_in_another_column_are_refused(tmp_path, column):
    path = tmp_path / "a.tsv"
    path.write_text(f"query\tdocument\t{column}\na\tB\t0\nc\tD\t1\n")
    with pytest.raises(UsageError, match=f"line 2: the column '{column}' is not read"):
        load_retrieval_pairs(path)
    path.write_text("query\tdocument\tscore\tid\na\tB\t0\t1\nc\tD\t2\t2\n")
    found = load_retrieval_pairs(path)
    assert (found.queries, found.grades) == (["c"], [{1: 2}])


def mteb_task(documents, queries, relevant):
    rows = [[{"id": name, **row} for name, row in texts.items()] for texts in (documents, queries)]
    data = dict(zip(("corpus", "queries"), rows)) | {"relevant_docs": relevant}
    return type("Task", (), {"load_data": lambda self: None, "dataset": {"default": {"test": data}}})()


@pytest.mark.parametrize(
    ("relevant", "text", "message"),
    [
        ({"q": {"a": 0.5}}, "x", "Task, query q, document a: the grade is 0.5; expected an integer"),
        ({"q": {"a": None}}, "x", "Task, query q, document a: the grade is None; expected a number"),
        ({"q": {"a": 1}}, 3, "Task, id b: text is 3; expected text"),
        ({"q": {"a": 1}}, "\ud800", r"Task, id b: '\ud800' is not valid Unicode"),
        ({"q": ["a"]}, "x", "Task is not a retrieval task"),
    ],
)
def test_mteb_tasks_get_the_same_checks(monkeypatch, relevant, text, message):
    fake_mteb(monkeypatch, mteb_task({"a": {"text": "x"}, "b": {"text": text}}, {"q": {"text": "y"}}, relevant))
    with pytest.raises(UsageError) as info:
        load_mteb_task("Task")
    assert message in str(info.value)


def test_mteb_judgments_of_unknown_documents_are_counted(monkeypatch, caplog):
    documents, queries = {"a": {"text": "x"}, "b": {"text": "z"}}, {"q": {"text": "y"}}
    fake_mteb(monkeypatch, mteb_task(documents, queries, {"q": {"a": 2, "c": 1, "b": -1}}))
    assert load_mteb_task("Task").grades == [{0: 2}]
    assert "1 judgment of queries or documents that do not exist" in caplog.text


def own(documents: int) -> Collection:
    """A collection with one query, whose own document is judged relevant, as is the last one."""
    texts = {f"d{i}": f"text {i}" for i in range(documents - 1)} | {"q": "text 1"}
    return make_collection("own", texts, {"q": "text 1"}, {("q", "q"): 1, ("q", "d0"): 1}, shared_ids=True)


@pytest.mark.parametrize("documents", [4, 100, 101, 150])
def test_the_document_with_the_id_of_the_query_counts_as_not_found(documents, caplog):
    """As in BEIR: it is in no ranking, and its judgment remains."""
    collection = own(documents)
    assert "1 relevant document with the id of the query, never found" in caplog.text
    ranking = collection.search(random_encode)
    itself = collection.documents.index("text 1", 2)
    assert itself == documents - 1 and itself not in ranking and (ranking == -1).sum() == (documents <= 100)
    best = sorted(ranking[0].tolist(), key=lambda document: document != 0)
    scores = collection.scores(np.array([best]))
    assert scores["map_100"] == 50 and scores["recall_100"] == 50 and 0 < scores["ndcg_10"] < 100


def test_scores_with_the_query_itself_equal_trec_eval():
    pytrec_eval = pytest.importorskip("pytrec_eval", reason="pytrec-eval-terrier is not installed")
    collection = own(9)
    ranking = collection.search(random_encode)[0]
    run = {"q": {str(d): float(-place) for place, d in enumerate(ranking) if d >= 0}}
    judged = {"q": {str(d): grade for d, grade in collection.grades[0].items()}}
    found = pytrec_eval.RelevanceEvaluator(judged, {"map_cut.100", "ndcg_cut.10"}).evaluate(run)["q"]
    scores = collection.scores(ranking[None])
    assert scores["map_100"] == pytest.approx(100 * found["map_cut_100"])
    assert scores["ndcg_10"] == pytest.approx(100 * found["ndcg_cut_10"])


def test_nothing_depends_on_the_order_of_the_documents():
    """Neither equal cosines, nor equal scores of BM25, nor documents that BM25 did not find."""
    pytest.importorskip("bm25s", reason="bm25s is not installed")
    source = np.random.default_rng(0)
    words = ["red", "lake", "stone", "bread"]
    documents = {f"d{i}": " ".join(source.choice(words, size=3)) for i in range(60)}
    queries = {f"q{i}": word for i, word in enumerate([*words, "unknown"])}
    judged = {(f"q{i}", f"d{11 * i + 3}"): 1 for i in range(5)}

    def rankings(order: list[str], depth: int) -> list[list[list[str]]]:
        chosen = {name: documents[name] for name in order}
        collection = make_collection("c", chosen, queries, judged, shared_ids=False)
        found = collection.search(random_encode, depth)
        ranking, ranks = bm25_search(collection, depth)
        return [found.tolist(), ranking.tolist(), fused_ranking(found, ranking, len(documents), ranks).tolist()]

    for depth in (10, 60):
        names = list(documents)
        expected = rankings(names, depth)
        assert all(rankings(list(source.permutation(names)), depth) == expected for _ in range(3))


def test_fusion_gives_nothing_to_documents_that_were_not_found():
    one, other = np.array([[0, 1, 2, 3]]), np.array([[3, -1, -1, -1]])
    assert fused_ranking(one, other, 6).tolist() == [[3, 0, 1, 2]]
    assert fused_ranking(np.full((1, 4), -1), other, 6).tolist() == [[3, -1, -1, -1]]


def test_equal_scores_of_bm25_share_a_rank():
    pytest.importorskip("bm25s", reason="bm25s is not installed")
    documents = {"a": "red lake", "b": "red lake", "c": "red red lake", "d": "old bread"}
    collection = make_collection("c", documents, {"q": "red"}, {("q", "a"): 1}, shared_ids=False)
    ranking, ranks = bm25_search(collection)
    assert ranking.tolist() == [[2, 0, 1, -1]] and ranks[0, :3].tolist() == [1, 2, 2]
    one = np.array([[3, 1, 0, 2]])
    assert fused_ranking(one, ranking, 4, ranks).tolist() == [[1, 2, 0, 3]]  # 2/62, 1/64 + 1/61, 1/63 + 1/62, 1/61
    assert fused_ranking(one, ranking, 4).tolist() == [[2, 0, 1, 3]]


@pytest.mark.parametrize("texts", [["the", "of"], ["a", "!"], ["", "x"]])
def test_bm25_without_any_word_finds_nothing(texts):
    pytest.importorskip("bm25s", reason="bm25s is not installed")
    documents = dict(zip("ab", texts))
    collection = make_collection("c", documents, {"q": "the lake"}, {("q", "a"): 1}, shared_ids=False)
    assert bm25_search(collection)[0].tolist() == [[-1, -1]]
    assert collection.scores(bm25_search(collection)[0])["recall_100"] == 0
