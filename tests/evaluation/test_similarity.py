"""The similarity that a model declares: the same values and rankings as by sentence-transformers."""

import tracemalloc

import numpy as np
import pytest
from scipy.stats import spearmanr

from informin.evaluation import paired, retrieval_table
from informin.evaluation.collections import Collection, make_collection
from informin.evaluation.pairs import GradedPairs
from informin.evaluation.results import load_results, new_results, resume_results, save_results, similarity_in
from informin.evaluation.retrieval_table import randomization_test
from informin.evaluation.senteval import StsTask
from informin.evaluation.similarity import SIMILARITIES, pairwise, prepared, similarities
from informin.evaluation.sts import score_sts
from informin.evaluation.table import Row, Table, footnotes, render
from tests.conftest import raises_usage
from tests.evaluation.results_helpers import MODEL

SOURCE = np.random.default_rng(3)
VECTORS = SOURCE.normal(size=(40, 6)) * SOURCE.uniform(0.1, 30, size=(40, 1))
EACH = pytest.mark.parametrize("similarity", SIMILARITIES)


def encode(texts) -> np.ndarray:
    return VECTORS[[int(text) for text in texts]]


def theirs(similarity: str, one: np.ndarray, other: np.ndarray, pairs: bool = False) -> np.ndarray:
    """By sentence-transformers."""
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    kind = library.SimilarityFunction
    function = (kind.to_similarity_pairwise_fn if pairs else kind.to_similarity_fn)(similarity)
    return function(one, other).numpy()


@EACH
def test_values_are_those_of_sentence_transformers(similarity):
    queries, documents = VECTORS[:9], VECTORS[9:]
    found = similarities(similarity, *(prepared(similarity, x) for x in (queries, documents)))
    np.testing.assert_allclose(found, theirs(similarity, queries, documents), rtol=1e-4, atol=1e-4)
    one, other = VECTORS[:20], VECTORS[20:]
    np.testing.assert_allclose(pairwise(similarity, one, other), theirs(similarity, one, other, pairs=True), atol=1e-9)


@EACH
def test_collections_are_ranked_by_it(similarity):
    names = [f"{i:02}" for i in range(9, 40)]
    judged = {(f"{i}", names[i]): 1 for i in range(9)}
    queries = {f"{i}": f"{i}" for i in range(9)}
    collection = make_collection("c", dict(zip(names, names)), queries, judged, shared_ids=False)
    found = collection.search(encode, 20, similarity=similarity)
    np.testing.assert_array_equal(found, np.argsort(-theirs(similarity, VECTORS[:9], VECTORS[9:]), axis=1)[:, :20])


@EACH
def test_files_of_pairs_are_ranked_by_it(similarity):
    texts = list(map(str, range(40)))
    pairs = Collection.of_pairs("p", texts[:9], texts[9:18], texts[18:])
    scores = theirs(similarity, VECTORS[:9], VECTORS[9:])
    ranks = 1 + (scores > np.diag(scores)[:, None]).sum(1)
    expected = 100 * np.where(ranks <= 10, 1 / ranks, 0).mean()
    assert pairs.score(encode, similarity=similarity)["mrr_10"] == pytest.approx(expected)
    assert pairs.score(encode, None, similarity)["mrr_10"] == pytest.approx(expected)


@EACH
def test_sts_is_scored_by_it(similarity):
    texts, grades = list(map(str, range(40))), SOURCE.uniform(size=20)
    task = StsTask("STS99", [GradedPairs("a", texts[:20], texts[20:], grades)], [])
    expected = 100 * spearmanr(theirs(similarity, VECTORS[:20], VECTORS[20:], pairs=True), grades).statistic
    assert score_sts(encode, task, similarity)["score"] == pytest.approx(expected)


@EACH
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_equal_texts_are_tied_at_any_length(similarity, scale):
    """Embeddings of a text in two batches differ in their last bits."""
    vector = scale * np.linspace(1, 2, 32)
    noise = vector * (1 + 2e-8 * np.random.default_rng(0).choice([-1, 1], size=(8, 32)))
    vectors = {"q": scale * np.linspace(2, 1, 32)} | {f"text {i}": x for i, x in enumerate(noise)}
    documents = {f"{i}": f"text {i}" for i in range(8)}
    collection = make_collection("c", documents, {"q": "q"}, {("q", "0"): 1}, shared_ids=False)
    found = collection.search(lambda texts: np.array([vectors[x] for x in texts]), similarity=similarity)
    assert found.tolist() == [[*range(8)]]


def test_results_name_another_similarity_and_are_not_resumed_with_it(tmp_path):
    cosine, dot = new_results("m", MODEL, {}), new_results("m", MODEL, {}, "dot")
    assert "similarity" not in cosine and similarity_in(cosine) == "cosine" and similarity_in(dot) == "dot"
    for kept, fresh, found in ((cosine, dot, "'cosine', now 'dot'"), (dot, cosine, "'dot', now 'cosine'")):
        save_results(tmp_path / "a.json", kept)
        with raises_usage(found=f"other results (similarity {found})"):
            resume_results(tmp_path / "a.json", fresh)
        assert resume_results(tmp_path / "a.json", kept) == load_results(tmp_path / "a.json")
    (note,) = footnotes([cosine, dot, cosine | {"similarity": "cosine"}])
    assert note == f"Similarity in STS and retrieval: dot product, as declared by m, {dot['pooler']}."
    save_results(tmp_path / "a.json", dot | {"similarity": "jaccard"})
    with raises_usage(found="similarity is 'jaccard'"):
        load_results(tmp_path / "a.json")


@pytest.mark.parametrize("block", [1, 51 * 7, 2**30])
def test_the_p_value_does_not_depend_on_the_block(monkeypatch, block):
    one, other = np.random.default_rng(1).normal(size=(2, 51))
    monkeypatch.setattr(retrieval_table, "TRIALS", 500)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(500, 51))
    expected = (1 + (np.abs(signs @ (one - other)) >= abs((one - other).sum()) - 1e-9).sum()) / 501
    monkeypatch.setattr(retrieval_table, "SIGNS", block)
    assert randomization_test(one, other) == expected


def test_a_randomization_test_of_many_queries_fits_in_memory(monkeypatch):
    monkeypatch.setattr(retrieval_table, "TRIALS", 500)
    tracemalloc.start()
    randomization_test(*np.random.default_rng(1).normal(size=(2, 40_000)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 60 * 2**20  # all signs at once have 153 MiB


def test_the_bootstrap_draws_the_same_samples_one_at_a_time(monkeypatch):
    monkeypatch.setattr(paired, "RESAMPLES", 40)
    texts = list(map(str, range(40)))
    pairs = GradedPairs("p", texts[:20], texts[20:], np.arange(20.0))
    (entry,) = paired.paired_scores([pairs], encode, lambda texts: encode(texts)[:, :3])
    rows = np.random.default_rng(0).integers(20, size=(40, 20))
    cosines = pairwise("cosine", VECTORS[:20], VECTORS[20:])
    found = [100 * spearmanr(cosines[row], np.arange(20.0)[row]).statistic for row in rows]
    np.testing.assert_allclose(entry["old"][1:], np.percentile(found, [2.5, 97.5]), atol=1e-9)


@pytest.mark.parametrize("form", ["text", "markdown", "latex"])
def test_names_in_tables_stay_on_one_line(form):
    hostile = "a\nb\x1b[31m|c"
    found = render(Table(hostile, ["score", hostile], [Row(hostile, {"score": 1.0, hostile: hostile})]), form)
    assert "\x1b" not in found and "a\\nb" in found.replace("\\\\n", "\\n")
    assert len(found.splitlines()) == {"text": 3, "markdown": 5, "latex": 8}[form]
    if form == "markdown":
        rows = found.splitlines()[2:]
        assert {row.replace("\\|", "").count("|") for row in rows} == {4}
