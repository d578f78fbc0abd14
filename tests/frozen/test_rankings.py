"""The rankings that an index adds to the scores of retrieval: BM25, both, reranking, and rank fusion."""

import numpy as np
import pytest

from informin.evaluation.evaluate import evaluate, load_tasks, score_model
from informin.evaluation.retrieval import DEPTH, Collection, make_collection
from informin.frozen.adapter import smooth_rows
from informin.frozen.bm25 import BM25, WORD_WEIGHT, z_scores
from informin.frozen.index import Index
from informin.frozen.late_interaction import CANDIDATES
from informin.frozen.rankings import SearchRankings, bm25_search, fused_ranking
from informin.model.open import load_model
from tests.conftest import make_sentences, raises_usage, save_sentence_transformer
from tests.evaluation.test_collections import ranked


@pytest.fixture
def model(st_mean):
    return load_model(st_mean, device="cpu")


@pytest.fixture
def collection(tmp_path):
    """Twelve queries, each with one relevant document among 40."""
    documents, queries = make_sentences(40, 1), make_sentences(12, 2)
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, texts in (("corpus", documents), ("queries", queries)):
        rows = [f"{i}\t{text}" for i, text in enumerate(texts)]
        (folder / f"{name}.tsv").write_text("\n".join(["id\ttext", *rows]) + "\n")
    (folder / "qrels.tsv").write_text("query\tdocument\n" + "".join(f"{i}\t{3 * i}\n" for i in range(12)))
    return folder


def bm25_of(collection: Collection) -> BM25:
    return BM25.build(collection.documents, "english")


def test_a_collection_is_scored_by_vectors_and_bm25(collection, model, tmp_path):
    tasks = load_tasks(None, [], retrieval=[collection])
    mine, output = tasks.data["mine"], tmp_path / "a.json"
    entry = score_model(model, tasks, rankings=SearchRankings(), output=output).tasks["mine"]
    assert entry["measures"] == score_model(model, tasks).tasks["mine"]["measures"]
    names = {"smoothed", "with_words", "reranked", "bm25"}
    own = {"kind", "n", "documents", "measures", "queries", "score", "language", "seconds", "data"}
    assert set(entry) == names | own and all(set(entry[name]) == {"measures", "queries"} for name in names)
    documents, queries = (model.encode(texts) for texts in (mine.documents, mine.queries))
    scores = BM25.build(mine.documents, "english").scores(mine.queries)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, documents)]
    sums = z_scores(unit[0] @ unit[1].T) + WORD_WEIGHT * z_scores(scores)
    by_hand = mine.scores(np.argsort(-sums, axis=1, kind="stable")[:, :DEPTH])["ndcg_10"].mean()
    assert entry["with_words"]["measures"]["ndcg_10"] == pytest.approx(by_hand)
    smooth = mine.rank(queries, smooth_rows(unit[1]))
    assert entry["smoothed"]["measures"]["ndcg_10"] == mine.scores(smooth)["ndcg_10"].mean()
    fused = score_model(model, tasks, rankings=SearchRankings(fuse=True), output=output).tasks["mine"]
    assert fused["measures"] == entry["measures"]
    by_vectors = entry["measures"]["ndcg_10"]
    assert len({fused[key]["measures"]["ndcg_10"] for key in ("bm25", "fused")} | {by_vectors}) == 3


@pytest.mark.parametrize("similarity", ["cosine", "euclidean"])
def test_a_collection_is_scored_as_an_index_reranks(collection, model, monkeypatch, similarity):
    monkeypatch.setattr(model, "similarity_fn_name", similarity)
    tasks = load_tasks(None, [], retrieval=[collection])
    mine = tasks.data["mine"]
    entry = score_model(model, tasks, rankings=SearchRankings()).tasks["mine"]
    index = Index.build(model, mine.documents, rerank=True)
    hits = np.array([[hit.row for hit in found] for found in index.search(mine.queries, CANDIDATES)])
    expected = mine.scores(hits)["ndcg_10"]
    np.testing.assert_allclose(entry["reranked"]["queries"]["ndcg_10"], expected, atol=1e-5)
    assert entry["reranked"]["measures"] != entry["with_words"]["measures"]
    assert "reranked" not in score_model(model, tasks, whitening=8, rankings=SearchRankings()).tasks["mine"]


def test_sides_are_embedded_once_with_their_tokens_and_prompts(collection, bert, tmp_path, monkeypatch):
    """Vectors and token vectors come from one forward pass."""
    prompts = {"query": "the dog ", "document": ""}
    model = load_model(save_sentence_transformer(tmp_path / "asks", bert, prompts=prompts), device="cpu")
    tasks = load_tasks(None, [], retrieval=[collection])
    calls: list[tuple] = []

    def spied(side, encode):
        return lambda texts, **options: calls.append((side, options["prompt"], len(texts))) or encode(texts, **options)

    for side, name in (("query", "encode_query"), ("document", "encode_document")):
        monkeypatch.setattr(model, name, spied(side, getattr(model, name)))
    for chosen, expected in ({}, "the dog "), ({"query_prompt": "a cat "}, "a cat "):
        calls.clear()
        score_model(model, tasks, rankings=SearchRankings(), **chosen)
        assert calls == [("document", None, 40), ("query", expected, 12)]


def test_the_language_decides_the_words(st_mean, tmp_path):
    """German stems find the plural. Results of another language are not finished."""
    others = make_sentences(20)
    rows = ["query\tdocument", "Häuser\tdas Haus am See", *(f"{text}\t{text}" for text in others)]
    path = tmp_path / "faq.tsv"
    path.write_text("\n".join(rows) + "\n")
    found = {}
    for language in ("german", "de", "english"):
        rankings = SearchRankings(language)
        result = evaluate(st_mean, retrieval=path, rankings=rankings, output=tmp_path / "r.json", device="cpu")
        task = result.rows[0].tasks["faq"]
        found[language] = task["bm25"]["queries"]["ndcg_10"][0]
        assert task["language"] == ("english" if language == "english" else "german")
    assert found == {"german": 100, "de": 100, "english": 0}
    with raises_usage("language"):
        SearchRankings("klingon")


def test_fusion_counts_ranks_from_one():
    """1/62 + 1/74 is less than 1/66 + 1/69, and 1/61 + 1/73, with ranks from 0, would be more than 1/65 + 1/68."""
    one, other = np.arange(2, 16)[None], np.arange(16, 30)[None]
    one[0, 1], other[0, 13] = 0, 0
    one[0, 5], other[0, 8] = 1, 1
    assert fused_ranking(one, other, 30)[0, :2].tolist() == [1, 0]


def test_fusion_adds_reciprocal_ranks():
    one, other = np.array([[3, 1, 0]]), np.array([[1, 2, -1]])
    scores = {3: 1 / 61, 1: 1 / 62 + 1 / 61, 0: 1 / 63, 2: 1 / 62}
    assert fused_ranking(one, other, 4)[0].tolist() == sorted(scores, key=scores.get, reverse=True)[:3]


def test_bm25_finds_no_document_without_a_query_word():
    documents = {f"d{i}": "a dog" if i == 9 else "cats" for i in range(40)}
    queries = {"q0": "nonsense", "q1": "another zzz", "q3": "dog"}
    collection = make_collection("c", documents, queries, {(name, "d3"): 1 for name in queries}, shared_ids=False)
    found = bm25_search(collection, bm25_of(collection), depth=5)[0]
    assert found.tolist() == [[-1] * 5, [-1] * 5, [9, -1, -1, -1, -1]]


def test_a_query_does_not_find_itself():
    texts = {f"t{i}": text for i, text in enumerate(make_sentences(40, 1))}
    queries, judged = {name: texts[name] for name in ("t1", "t5")}, {("t1", "t2"): 1, ("t5", "t2"): 1}
    one, other = (make_collection("own", texts, queries, judged, shared_ids=shared) for shared in (True, False))
    found, with_itself = (bm25_search(collection, bm25_of(collection), 3)[0] for collection in (one, other))
    assert with_itself[:, 0].tolist() == [1, 5] and found[:, :2].tolist() == with_itself[:, 1:].tolist()


def test_no_ranking_depends_on_the_order_of_the_documents():
    """Neither equal cosines, nor equal scores of BM25, nor documents that BM25 did not find."""
    source = np.random.default_rng(0)
    words = ["red", "lake", "stone", "bread"]
    documents = {f"d{i}": " ".join(source.choice(words, size=3)) for i in range(60)}
    queries = {f"q{i}": word for i, word in enumerate([*words, "unknown"])}
    judged = {(f"q{i}", f"d{11 * i + 3}"): 1 for i in range(5)}

    def rankings(order: list[str], depth: int) -> list[list[list[str]]]:
        chosen = {name: documents[name] for name in order}
        collection = make_collection("c", chosen, queries, judged, shared_ids=False)
        found = ranked(collection, depth)
        ranking, ranks = bm25_search(collection, bm25_of(collection), depth)
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
    documents = {"a": "red lake", "b": "red lake", "c": "red red lake", "d": "old bread"}
    collection = make_collection("c", documents, {"q": "red"}, {("q", "a"): 1}, shared_ids=False)
    ranking, ranks = bm25_search(collection, bm25_of(collection))
    assert ranking.tolist() == [[2, 0, 1, -1]] and ranks[0, :3].tolist() == [1, 2, 2]
    one = np.array([[3, 1, 0, 2]])
    assert fused_ranking(one, ranking, 4, ranks).tolist() == [[1, 2, 0, 3]]  # 2/62, 1/64 + 1/61, 1/63 + 1/62, 1/61
    assert fused_ranking(one, ranking, 4).tolist() == [[2, 0, 1, 3]]


@pytest.mark.parametrize("texts", [["the", "of"], ["a", "!"], ["", "x"]])
def test_bm25_without_any_word_finds_nothing(texts):
    documents = dict(zip("ab", texts))
    collection = make_collection("c", documents, {"q": "the lake"}, {("q", "a"): 1}, shared_ids=False)
    assert bm25_search(collection, bm25_of(collection))[0].tolist() == [[-1, -1]]
    assert collection.scores(bm25_search(collection, bm25_of(collection))[0])["recall_100"] == 0
