"""BM25 of words: the formula, stems and stop words by language."""

import math

import numpy as np
import pytest

from informin.evaluation.words import LANGUAGES, OTHER, Words
from tests.conftest import raises_usage

TEXTS = ["cats see dogs", "a dog sees the dog and a bird", "birds", "the", ""]


def bm25(counts: list[dict[str, int]], query: list[str], k1: float = 1.5, b: float = 0.75) -> list[float]:
    """Robertson & Zaragoza (2009), with the idf of Lucene, in loops."""
    mean = sum(sum(count.values()) for count in counts) / len(counts)
    scores = []
    for count in counts:
        score = 0.0
        for word in query:
            containing = sum(word in other for other in counts)
            if not containing:
                continue
            idf = math.log(1 + (len(counts) - containing + 0.5) / (containing + 0.5))
            frequency = count.get(word, 0)
            score += idf * frequency / (frequency + k1 * (1 - b + b * sum(count.values()) / mean))
        scores.append(score)
    return scores


def test_scores_are_bm25_of_stems_without_stop_words():
    words = Words.build(TEXTS, "english")
    counts = [{"cat": 1, "see": 1, "dog": 1}, {"dog": 2, "see": 1, "bird": 1}, {"bird": 1}, {}, {}]
    scores = words.scores(["the dogs and the cat", "birds birds", "zebra", ""])
    expected = [bm25(counts, query) for query in (["dog", "cat"], ["bird", "bird"], ["zebra"], [])]
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_weights_times_counts_are_the_scores():
    words = Words.build(TEXTS, "english")
    queries = ["dog dog bird", "nothing known", "cats"]
    product = (words.counts(queries) @ words.weights().T).toarray()
    np.testing.assert_allclose(product, words.scores(queries), atol=1e-5)


def test_german():
    words = Words.build(["Die Häuser am Fluss", "Der Hund und die Katze"], "german")
    assert (words.scores(["das Haus"]) > 0).tolist() == [[True, False]]
    assert not words.scores(["der und die"]).any()
    assert not Words.build(["Die Häuser am Fluss"], OTHER).scores(["Haus"]).any()


@pytest.mark.parametrize("language", [*LANGUAGES, OTHER])
def test_each_language_has_stems_and_stop_words(language):
    assert Words.build(["one two", "three"], language).scores(["three"])[0].argmax() == 1


def test_unknown_language():
    with raises_usage("language"):
        Words.build(TEXTS, "klingon")


def test_texts_without_words():
    words = Words.build(["the", ""], "english")
    assert words.scores(["the dog"]).tolist() == [[0, 0]]
    assert words.weights().shape == (2, 0)


def test_saved(tmp_path):
    words = Words.build(TEXTS, "english")
    words.save(tmp_path)
    np.testing.assert_array_equal(Words.load(tmp_path, "english").scores(["dog bird"]), words.scores(["dog bird"]))
