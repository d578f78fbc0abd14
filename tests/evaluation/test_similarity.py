"""Another similarity than the cosine: the same values and rankings as by sentence-transformers."""

import tracemalloc

import numpy as np
import pytest
from scipy.stats import spearmanr
from sentence_transformers import SimilarityFunction

from informin.evaluation import retrieval as ranking
from informin.evaluation.evaluate import score_sts
from informin.evaluation.pairs import GradedPairs
from informin.evaluation.retrieval import make_collection, randomization_test
from informin.evaluation.senteval import StsTask

SOURCE = np.random.default_rng(3)
VECTORS = SOURCE.normal(size=(40, 6)) * SOURCE.uniform(0.1, 30, size=(40, 1))
NAMES = ["cosine", "dot", "euclidean", "manhattan"]
EACH = pytest.mark.parametrize("name", NAMES)


def encode(texts) -> np.ndarray:
    return VECTORS[[int(text) for text in texts]]


@pytest.mark.parametrize("name, default", [("cosine", True), *((name, False) for name in NAMES)])
def test_collections_are_ranked_by_it(name, default):
    names = [f"{i:02}" for i in range(9, 40)]
    judged = {(f"{i}", names[i]): 1 for i in range(9)}
    queries = {f"{i}": f"{i}" for i in range(9)}
    collection = make_collection("c", dict(zip(names, names)), queries, judged, shared_ids=False)
    similarity = SimilarityFunction.to_similarity_fn(name)
    found = collection.rank(VECTORS[:9], VECTORS[9:], 20, None if default else similarity)
    expected = np.argsort(-similarity(VECTORS[:9], VECTORS[9:]).numpy(), axis=1)[:, :20]
    np.testing.assert_array_equal(found, expected)


@EACH
def test_sts_is_scored_by_it(name):
    texts, grades = list(map(str, range(40))), SOURCE.uniform(size=20)
    task = StsTask("STS99", [GradedPairs("a", texts[:20], texts[20:], grades)], [])
    similarity = SimilarityFunction.to_similarity_pairwise_fn(name)
    expected = 100 * spearmanr(similarity(VECTORS[:20], VECTORS[20:]).numpy(), grades).statistic
    assert score_sts(encode, task, similarity)["score"] == pytest.approx(expected)
    assert (score_sts(encode, task)["score"] == pytest.approx(expected)) == (name == "cosine")


@EACH
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_equal_texts_are_tied_at_any_length(name, scale):
    """Embeddings of a text in two batches differ in their last bits."""
    vector = scale * np.linspace(1, 2, 32)
    noise = vector * (1 + 2e-8 * np.random.default_rng(0).choice([-1, 1], size=(8, 32)))
    query = scale * np.linspace(2, 1, 32)[None]
    documents = {f"{i}": f"text {i}" for i in range(8)}
    collection = make_collection("c", documents, {"q": "q"}, {("q", "0"): 1}, shared_ids=False)
    similarity = SimilarityFunction.to_similarity_fn(name)
    assert collection.rank(query, noise, similarity=similarity).tolist() == [[*range(8)]]


@pytest.mark.parametrize("block", [1, 51 * 7, 2**30])
def test_the_p_value_does_not_depend_on_the_block(monkeypatch, block):
    one, other = np.random.default_rng(1).normal(size=(2, 51))
    monkeypatch.setattr(ranking, "TRIALS", 500)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(500, 51))
    expected = (1 + (np.abs(signs @ (one - other)) >= abs((one - other).sum()) - 1e-9).sum()) / 501
    monkeypatch.setattr(ranking, "SIGNS", block)
    assert randomization_test(one, other) == expected


def test_a_randomization_test_of_many_queries_fits_in_memory(monkeypatch):
    monkeypatch.setattr(ranking, "TRIALS", 500)
    tracemalloc.start()
    randomization_test(*np.random.default_rng(1).normal(size=(2, 40_000)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 60 * 2**20  # all signs at once have 153 MiB
