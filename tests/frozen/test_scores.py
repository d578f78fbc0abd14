"""Cosines between unrelated texts, and the thresholds that follow from them."""

import json
from dataclasses import asdict

import numpy as np
import pandas
import pytest
from safetensors import safe_open

from informin.evaluation.encode import unit
from informin.frozen.adapter import LinearAdapter
from informin.frozen.unrelated import UnrelatedScores, unrelated_scores
from tests.conftest import raises_usage

TOPICS, WIDTH = 30, 24
SCORES = UnrelatedScores(1_000, (1.0, 0.1, 0.01), tuple(np.tanh([0.0, 0.3, 0.6]).tolist()))


def texts_of_topics(per_topic: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return unit vectors around a mean and 30 topics, and the topic of each."""
    centers = np.random.default_rng(0).normal(size=(TOPICS, WIDTH))
    topics = np.repeat(np.arange(TOPICS), per_topic)
    noise = 0.7 * np.random.default_rng(seed).normal(size=(len(topics), WIDTH))
    return unit(centers[topics] + noise + 0.5), topics


def real(threshold: float, queries: tuple, documents: tuple) -> float:
    """Return how many documents of another topic are above the threshold, per query."""
    false = queries[1][:, None] != documents[1]
    return float(((queries[0] @ documents[0].T > threshold) & false).sum() / len(queries[0]))


@pytest.mark.parametrize("promise", [1, 10])
def test_real_false_hits_are_as_promised_and_related_texts_do_not_count(promise):
    documents, queries = texts_of_topics(40, 1), texts_of_topics(10, 2)
    scores = unrelated_scores(documents[0])
    assert scores is not None
    assert promise / 1.5 < real(scores.threshold(promise), queries, documents) < promise * 1.5
    cosines = np.sort((documents[0] @ documents[0].T)[~np.eye(len(documents[0]), dtype=bool)])
    every_pair = cosines[-promise * len(documents[0])]  # with the related ones
    assert real(every_pair, queries, documents) < promise / 3


def test_thresholds_follow_the_stored_probabilities():
    assert SCORES.threshold(100) == pytest.approx(np.tanh(0.3))
    assert SCORES.threshold(100, texts=10_000) == pytest.approx(np.tanh(0.6))
    assert SCORES.threshold(1) == pytest.approx(np.tanh(0.9))  # extrapolated
    assert SCORES.threshold(5_000) == 0.0  # more than there are texts


def test_arguments_out_of_range():
    with raises_usage(option="false_hits_per_query"):
        SCORES.threshold(0)
    with raises_usage(option="texts"):
        SCORES.threshold(texts=-1)


def test_few_texts_and_copies_have_no_scores():
    few = texts_of_topics(3, 1)[0]  # 90
    assert unrelated_scores(few) is None
    assert unrelated_scores(np.concatenate([few, few])) is None
    with raises_usage():
        LinearAdapter().fit(few).measure_scores(few).threshold()


def test_copies_do_not_change_the_distribution():
    documents = texts_of_topics(10, 1)[0]
    once, twice = unrelated_scores(documents), unrelated_scores(np.concatenate([documents, documents]))
    assert once and twice
    assert (once.texts, twice.texts) == (300, 600)
    assert once.cosines == pytest.approx(twice.cosines)


def test_nan():
    documents = texts_of_topics(10, 1)[0]
    documents[5, 0] = np.nan
    with raises_usage():
        unrelated_scores(documents)


def test_an_adapter_keeps_them(tmp_path):
    documents = texts_of_topics(10, 1)[0]
    adapter = LinearAdapter().fit(documents).measure_scores(documents)
    scores = unrelated_scores(documents, adapter.transform(documents))
    assert scores is not None
    assert adapter.threshold(2) == scores.threshold(2)
    adapter.save(tmp_path / "adapter.safetensors")
    with safe_open(tmp_path / "adapter.safetensors", "np") as file:
        assert json.loads(file.metadata()["scores"]) == asdict(scores)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [np.ndarray.tolist, lambda x: pandas.DataFrame(x).add_prefix("x")])
def test_every_table_that_fit_takes_is_measured(kind):
    documents = np.random.default_rng(0).normal(size=(150, 8))
    wanted = LinearAdapter().fit(documents).measure_scores(documents).threshold()
    adapter = LinearAdapter().fit(kind(documents)).set_output(transform="pandas")
    assert adapter.measure_scores(kind(documents)).threshold() == pytest.approx(wanted)
    adapted = adapter.transform(kind(documents))
    assert adapter.measure_scores(kind(documents), adapted).threshold() == pytest.approx(wanted)


def test_smoothed_documents_have_their_own_threshold():
    documents = texts_of_topics(10, 1)[0]
    adapter = LinearAdapter().fit(documents)
    index = adapter.transform(documents, smooth=True)
    plain = adapter.measure_scores(documents).threshold()
    scores = unrelated_scores(documents, adapter.transform(documents), index)
    assert scores is not None
    assert adapter.measure_scores(documents, index).threshold() == scores.threshold() != plain


def test_they_belong_to_one_fit():
    documents = texts_of_topics(10, 1)[0]
    adapter = LinearAdapter().fit(documents).measure_scores(documents)
    assert 0 < adapter.threshold() < 1
    with raises_usage():
        adapter.fit(documents[::2]).threshold()
