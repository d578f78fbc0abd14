"""Test collections: both layouts, metrics as in trec_eval, and the randomization test."""

import itertools
import json
import shutil

import numpy as np
import pytest

from informin.evaluation.retrieval import Collection, load_collection, make_collection, randomization_test
from tests.conftest import SHARED, make_sentences, raises_usage

DOCUMENTS, QUERIES = make_sentences(40, 1), make_sentences(6, 2)
JUDGED = [(0, 3, 2), (0, 4, 1), (1, 7, 1), (2, 9, 0), (3, 9, 3), (3, 10, 1), (3, 11, 2)]  # query 2 has no relevant one


@pytest.fixture
def tsv(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, texts in (("corpus", DOCUMENTS), ("queries", QUERIES)):
        rows = [f"{i}\t{text}" for i, text in enumerate(texts)]
        (folder / f"{name}.tsv").write_text("\n".join(["id\ttext", *rows]) + "\n")
    rows = [f"{query}\t{document}\t{grade}" for query, document, grade in JUDGED]
    (folder / "qrels.tsv").write_text("\n".join(["query\tdocument\tscore", *rows]) + "\n")
    return folder


@pytest.fixture
def beir(tmp_path):
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(DOCUMENTS)]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)))
    rows = [{"_id": f"q{i}", "text": text} for i, text in enumerate(QUERIES)]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, rows)))
    rows = [f"q{query}\td{document}\t{grade}" for query, document, grade in JUDGED]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
    return folder


def test_a_query_does_not_find_itself(caplog):
    caplog.set_level("INFO")
    texts = {f"t{i}": text for i, text in enumerate(DOCUMENTS)}
    queries, judged = {name: texts[name] for name in ("t1", "t5")}, {("t1", "t2"): 1, ("t5", "t2"): 1}
    one, other = (make_collection("own", texts, queries, judged, shared_ids=shared) for shared in (True, False))
    assert [record.message.partition(",")[0] for record in caplog.records if "id of a query" in record.message] == [
        "own: 2 documents with the id of a query"
    ]
    found, with_itself = map(ranked, (one, other))
    assert with_itself[:, 0].tolist() == [1, 5]
    assert [row[:-1].tolist() for row in found] == [row[1:].tolist() for row in with_itself]
    assert found[:, -1].tolist() == [-1, -1]


def test_a_folder_and_pairs_with_the_same_texts_have_the_same_scores_in_training(tsv):
    queries, documents, grades = zip(*((QUERIES[q], DOCUMENTS[d], grade) for q, d, grade in JUDGED))
    pairs, folder = Collection.of_pairs("pairs", queries, documents, DOCUMENTS, grades), load_collection(tsv)
    arrays = map(np.array, (queries, documents, DOCUMENTS, grades))
    assert Collection.of_pairs("pairs", *arrays).sha256 == pairs.sha256
    found = folder.score(random_encode)
    assert found == pairs.score(random_encode) and 0 < found["map_100"] < 100
    assert folder.counts == pairs.counts == {"kind": "retrieval", "n": 3, "documents": 40}
    copy = shutil.copytree(tsv, tsv.parent / "copy")
    assert load_collection(copy).sha256 == folder.sha256
    (copy / "qrels.tsv").write_text((tsv / "qrels.tsv").read_text().replace("\t3\n", "\t2\n"))
    assert load_collection(copy).sha256 != folder.sha256


def random_encode(texts) -> np.ndarray:
    return np.array([np.random.default_rng(sum(map(ord, text))).normal(size=8) for text in texts])


def ranked(collection: Collection, depth: int = 100) -> np.ndarray:
    return collection.rank(random_encode(collection.queries), random_encode(collection.documents), depth)


def test_both_layouts_give_the_same_collection(tsv, beir):
    one, other = load_collection(tsv), load_collection(beir)
    assert one.documents == other.documents == DOCUMENTS and one.grades == other.grades
    assert one.queries == other.queries == [QUERIES[i] for i in (0, 1, 3)]
    assert one.grades == [{3: 2, 4: 1}, {7: 1}, {9: 3, 10: 1, 11: 2}]


def test_randomization_test_approximates_the_exact_p_value():
    one, other = np.array([3.0, 5, 4, 6, 7, 2]), np.array([1.0, 4, 5, 2, 3, 1])
    flips = np.array([np.dot(signs, one - other) for signs in itertools.product([-1, 1], repeat=6)])
    exact = (np.abs(flips) >= abs((one - other).sum())).mean()
    assert randomization_test(one, other) == pytest.approx(exact, abs=0.02)
    assert randomization_test(one, one) == 1 and randomization_test(one, other) == randomization_test(other, one)


@pytest.mark.parametrize(
    "file, content, found",
    [
        ("qrels.tsv", "query\tdocument\n9\t1\n", "'9'"),
        ("qrels.tsv", "query\tdocument\n0\t99\n", "'99'"),
        ("qrels.tsv", "query\tdocument\tscore\n0\t1\t0\n", "has no judgment above 0"),
        ("corpus.tsv", "id\ttext\n1\ta\n1\tb\n", "the id '1' occurs twice"),
    ],
)
def test_damaged_collections_are_rejected(tsv, file, content, found):
    (tsv / file).write_text(content)
    with raises_usage(found=found):
        load_collection(tsv)


def test_a_folder_without_a_collection_is_rejected(tmp_path):
    with raises_usage(option="retrieval"):
        load_collection(tmp_path)


def test_cisi_has_its_known_size():
    if not SHARED.is_dir():
        pytest.skip("../shared is not here")
    collection = load_collection(SHARED / "data" / "retrieval" / "cisi")
    assert (len(collection.documents), len(collection.queries)) == (1460, 76)
