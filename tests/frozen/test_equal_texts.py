"""Equal texts have equal scores, and are ordered by their rows, although sums of floats depend on a text's place."""

from collections import defaultdict

import numpy as np
import pytest

from informin.frozen import index_search as vectors_module
from informin.frozen.index import Index
from informin.frozen.late_interaction import TokenVectors
from tests.conftest import make_sentences

COPIED = make_sentences(8, seed=3)
QUERIES = ["the old dog runs", "a small house", "zyzzyva", *COPIED[:4]]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """110 sentences, and seven duplicates of eight others among them."""
    found, source = make_sentences(110), np.random.default_rng(0)
    for text in COPIED * 7:
        found.insert(source.integers(len(found)), text)
    return found


def check_duplicates(index: Index, k: int) -> None:
    """Check the duplicates among the first k hits of each query."""
    rows_of = defaultdict(list)
    for row, text in zip(index.rows.tolist(), index.texts):
        rows_of[text].append(row)
    for hits in index.search(QUERIES, k):
        found = defaultdict(list)
        for hit in hits:
            found[hit.text].append(hit)
        for text, same in found.items():
            assert [hit.row for hit in same] == rows_of[text][: len(same)]
            assert len({(hit.score, hit.vector_score, hit.word_score, hit.token_score) for hit in same}) == 1


@pytest.mark.parametrize(
    "options",
    [{}, {"word_weight": 0}, {"smooth": True}, {"queries": "static"}, {"rerank": True}],
    ids=lambda options: "-".join(options) or "plain",
)
def test_copies_have_equal_scores_and_are_ordered_by_row(st_mean, texts, options):
    index = Index.build(st_mean, texts, **options)
    for k in (5, 10, 25, len(texts)):
        check_duplicates(index, k)


@pytest.mark.parametrize("rerank", [False, True])
def test_rounding_does_not_matter(st_mean, texts, monkeypatch, rerank):
    """Larger rounding than that of this processor and these small vectors, in cosines and in token scores."""
    noise = np.random.default_rng(1).uniform(-1e-6, 1e-6, len(texts))
    candidates, look = vectors_module.Vectors.candidates, TokenVectors.rerank

    def noisy_candidates(*args):
        return ((places, similarities + noise[places]) for places, similarities in candidates(*args))

    def noisy_look(tokens, query, places):
        return tuple(values + noise[places] for values in look(tokens, query, places))

    monkeypatch.setattr(vectors_module.Vectors, "candidates", noisy_candidates)
    monkeypatch.setattr(TokenVectors, "rerank", noisy_look)
    index = Index.build(st_mean, texts, rerank=rerank)
    for k in (*range(1, 12), 25, 50, len(texts)):
        check_duplicates(index, k)


def test_copies_in_a_large_index(st_mean, texts, monkeypatch):
    """Where the leading directions of the vectors choose the candidates."""
    monkeypatch.setattr(vectors_module, "COMPARED", 0)
    monkeypatch.setattr(vectors_module, "LEADING_DIRECTIONS", 12)
    index = Index.build(st_mean, texts)
    for k in (5, 25, len(texts)):
        check_duplicates(index, k)


def test_copies_of_which_one_was_removed(st_mean, texts):
    index = Index.build(st_mean, texts)
    index.remove([index.search(COPIED[0], 1)[0].row])
    check_duplicates(index, 10)


@pytest.mark.parametrize("number", [5, 53, 150])
def test_copies_of_a_single_text_score_zero(st_mean, number):
    """Deviations that are only rounding are not made to 1."""
    index = Index.build(st_mean, ["the dog sleeps under a red house"] * number)
    for hits in index.search(["a cat", "dog", "red house"], number):
        np.testing.assert_allclose([hit.score for hit in hits], 0, atol=1e-3)
        assert [hit.row for hit in hits] == list(range(number))


@pytest.mark.parametrize("by", ["leading directions", "faiss"])
def test_many_copies_displace_no_better_text_in_a_large_index(st_mean, monkeypatch, by):
    """There are more duplicates than candidates of a query."""
    texts = make_sentences(150)
    index = Index.build(st_mean, texts)
    copied = index.search(QUERIES[0], 8)[-1].text
    index.add([copied] * 300)
    expected = [[hit.row for hit in hits] for hits in index.search(QUERIES, 12)]
    monkeypatch.setattr(vectors_module, "COMPARED", 0)
    monkeypatch.setattr(vectors_module, "MOST_CANDIDATES", 145)
    monkeypatch.setattr(vectors_module, "LEADING_DIRECTIONS", 2)
    if by == "faiss":
        pytest.importorskip("faiss")
        monkeypatch.setattr(vectors_module, "IN_MEMORY", 0)
    large = Index(index.model, index._state.with_record())
    assert [[hit.row for hit in hits] for hits in large.search(QUERIES, 12)] == expected
    assert (large._state.compared.faiss is not None) == (by == "faiss")
