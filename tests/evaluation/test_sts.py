"""STS scores compared with plain loops and scipy, shared embeddings, and whitening in closed form."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from informin.errors import UndefinedScoreError
from informin.evaluation.encode import EmbeddingCache, whiten, whitened
from informin.evaluation.evaluate import score_sts
from informin.evaluation.pairs import GradedPairs
from informin.evaluation.senteval import StsTask
from tests.conftest import make_sentences

SENTENCES = make_sentences(40, seed=5)


def vectors_of(sentences, seed: int = 0, width: int = 6) -> dict[str, np.ndarray]:
    source = np.random.default_rng(seed)
    return {sentence: source.normal(size=width).astype(np.float32) for sentence in sentences}


def task_of(sizes, seed: int = 0) -> StsTask:
    """Return subsets of these sizes, with ties in the grades and sentences that recur in other pairs and subsets.

    Pairs do not recur: their cosines might differ in their last bits, and so in rank.
    """
    source = np.random.default_rng(seed)
    everything = list(itertools.combinations(SENTENCES, 2))
    chosen = iter(source.choice(len(everything), sum(sizes), replace=False))
    subsets = []
    for number, size in enumerate(sizes):
        first, second = map(list, zip(*(everything[next(chosen)] for _ in range(size))))
        subsets.append(GradedPairs(f"subset {number}", first, second, source.integers(0, 11, size) / 2 + number))
    return StsTask("STS99", subsets, [])


def recording(vectors):
    """Return an encode() for the given vectors, and the list of its calls."""
    calls = []

    def encode(sentences):
        calls.append(list(sentences))
        return np.stack([vectors[sentence] for sentence in sentences])

    return encode, calls


def cosine(x, y) -> float:
    x, y = x.astype(np.float64), y.astype(np.float64)
    return sum(a * b for a, b in zip(x, y)) / math.sqrt(sum(a * a for a in x) * sum(b * b for b in y))


@pytest.mark.parametrize("sizes", [(25,), (10, 30), (7, 40, 12, 20)])
def test_scores_equal_plain_loops(sizes):
    task, vectors = task_of(sizes), vectors_of(SENTENCES)
    encode, calls = recording(vectors)
    found = score_sts(encode, task)

    cosines = [[cosine(vectors[a], vectors[b]) for a, b in zip(p.sentences1, p.sentences2)] for p in task.subsets]
    joined = list(itertools.chain(*cosines))
    grades = list(itertools.chain(*(pairs.scores for pairs in task.subsets)))
    own = [100 * spearmanr(values, pairs.scores).statistic for values, pairs in zip(cosines, task.subsets)]
    assert found["score"] == pytest.approx(100 * spearmanr(joined, grades).statistic, rel=1e-9)
    assert found["pearson"] == pytest.approx(100 * pearsonr(joined, grades).statistic, rel=1e-6)
    assert found["mean"] == pytest.approx(sum(own) / len(own), rel=1e-9)
    assert found["wmean"] == pytest.approx(sum(s * n for s, n in zip(own, sizes)) / sum(sizes), rel=1e-9)
    assert found["n"] == sum(sizes) == task.counts["n"]
    assert set(found) == {*("score mean wmean pearson n subsets".split())}
    expected = {f"subset {i}": {"score": pytest.approx(own[i], rel=1e-9), "n": size} for i, size in enumerate(sizes)}
    assert found["subsets"] == expected
    if len(sizes) > 1:
        values = [found[name] for name in ("score", "mean", "wmean", "pearson")]
        assert min(abs(a - b) for i, a in enumerate(values) for b in values[:i]) > 0.1, "the example tells them apart"
    assert len(calls) == 1 and len(calls[0]) == len(set(calls[0])) and set(calls[0]) == set(task.texts())


def test_score_over_all_pairs_depends_on_levels_of_subsets():
    """Two subsets with perfect correlation, whose cosines are at different levels."""
    angles = {"a": 0.0, "b": 0.1, "c": 0.2, "d": 1.0, "e": 1.1}
    vectors = {name: np.array([math.cos(angle), math.sin(angle)]) for name, angle in angles.items()}
    low = GradedPairs("alike, graded low", ["a", "a", "a"], ["a", "b", "c"], np.array([2.0, 1.0, 0.0]))
    high = GradedPairs("unlike, graded high", ["a", "a"], ["d", "e"], np.array([5.0, 4.0]))
    found = score_sts(recording(vectors)[0], StsTask("STS99", [low, high], []))
    assert (found["mean"], found["wmean"]) == pytest.approx((100, 100)) and found["score"] == pytest.approx(-50)


def test_equal_embeddings_have_no_score():
    encode, _ = recording({sentence: np.float32([3, 1, 2]) * (1 + i) for i, sentence in enumerate(SENTENCES)})
    with pytest.raises(UndefinedScoreError, match="all 37 predictions are equal, so the correlation is undefined"):
        score_sts(encode, task_of((12, 25)))


def test_constant_subset_has_no_score():
    """The correlation over all pairs exists, but the mean over subsets does not."""
    vectors = vectors_of("abcd")
    varied = GradedPairs("varied", ["a", "a", "b"], ["b", "c", "c"], np.array([1.0, 2.0, 3.0]))
    constant = GradedPairs("constant", ["a", "b"], ["d", "d"], np.array([1.0, 2.0]))
    vectors["b"] = vectors["a"]
    with pytest.raises(UndefinedScoreError, match="all 2 predictions are equal"):
        score_sts(recording(vectors)[0], StsTask("STS99", [varied, constant], []))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_embedding_not_finite_has_no_score(value):
    task, vectors = task_of((20,)), vectors_of(SENTENCES)
    for sentence in task.texts()[3:5]:
        vectors[sentence][2] = value
    message = f"the embeddings of 2 of {len(task.texts())} sentences are not finite"
    with pytest.raises(UndefinedScoreError, match=message):
        score_sts(recording(vectors)[0], task)


def test_each_sentence_is_encoded_once_over_all_calls():
    """The new ones of each call, in their order. The lookup keeps order and duplicates."""
    vectors = vectors_of(SENTENCES)
    encode, calls = recording(vectors)
    once = EmbeddingCache(encode)
    for sentences in (
        SENTENCES[5:15],
        SENTENCES[0:10],
        [SENTENCES[3], SENTENCES[20], SENTENCES[3], SENTENCES[14]],
        SENTENCES[:5],
    ):
        np.testing.assert_array_equal(once(sentences), np.stack([vectors[s] for s in sentences]))
    assert calls == [SENTENCES[5:15], SENTENCES[0:5], [SENTENCES[20]]]


def correlated(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Rows with a different variance in each direction and a nonzero mean."""
    source = np.random.default_rng(seed)
    mixing = source.normal(size=(columns, columns)) * np.geomspace(3, 0.05, columns)
    return (source.normal(size=(rows, columns)) @ mixing.T + source.normal(size=columns) * 10).astype(np.float32)


def eigen(x):
    """Return centered rows, and eigenvectors and eigenvalues of their covariance, largest first."""
    x = x.astype(np.float64)
    centered = x - x.mean(0)
    values, vectors = np.linalg.eigh(centered.T @ centered / len(x))
    return centered, vectors[:, ::-1], values[::-1]


@pytest.mark.parametrize("dimensions", [None, 5, 3, 1])
def test_whitening_matches_closed_form(dimensions):
    """Signs of directions are free, inner products are not: those of the principal components over their variances."""
    x = correlated(60, 5)
    found = whiten(x, dimensions)
    kept = dimensions or 5
    assert found.shape == (60, kept) and found.dtype == np.float32
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(found.T.astype(np.float64) @ found / 60, np.eye(kept), atol=1e-4)
    centered, directions, variances = eigen(x)
    principal = centered @ directions[:, :kept] / np.sqrt(variances[:kept])
    np.testing.assert_allclose(found @ found.T, principal @ principal.T, atol=1e-3)
    np.testing.assert_allclose(np.abs(found), np.abs(principal), atol=1e-3)


@pytest.mark.parametrize(
    "x, rank",
    [
        (np.hstack([correlated(30, 3), correlated(30, 3)]), 3),  # columns twice
        (np.hstack([correlated(30, 3), np.full((30, 2), 7.0)]), 3),  # columns that are constant
        (np.repeat(correlated(2, 4), 10, axis=0), 1),
    ],
)
def test_directions_without_variance_are_left_out(x, rank):
    found = whiten(x, None)
    assert found.shape == (len(x), rank) and np.isfinite(found).all()
    np.testing.assert_allclose(found.T @ found / len(x), np.eye(rank), atol=1e-3)
    assert whiten(x, 2).shape == (len(x), min(rank, 2))


@pytest.mark.parametrize("dimensions", [None, 3])
def test_whitening_hides_no_broken_embedding(dimensions):
    task, vectors = task_of((20,)), vectors_of(SENTENCES)
    vectors[task.texts()[3]][2] = np.nan
    with pytest.raises(UndefinedScoreError, match="sentences are not finite"):
        score_sts(whitened(recording(vectors)[0], dimensions), task)


def test_whitened_is_fitted_on_the_sentences_of_each_call():
    vectors = vectors_of(SENTENCES)
    encode, calls = recording(vectors)
    both = whitened(encode, 2)
    for sentences in (SENTENCES[:12], SENTENCES[12:30]):
        x = np.stack([vectors[s] for s in sentences])
        np.testing.assert_array_equal(both(sentences), whiten(x, 2))
    assert calls == [SENTENCES[:12], SENTENCES[12:30]]
