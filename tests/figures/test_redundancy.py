"""The redundancy probe on encoders with known scores."""

import hashlib
import math
import re
import warnings
from dataclasses import astuple

import numpy as np
import pytest

from informin.figures.redundancy import (
    CONTENT_CHANGED,
    FEWEST,
    FOLDS,
    STOP_WORDS,
    VARIANTS,
    VariantScore,
    hyphen_joined,
    probe,
)
from tests.conftest import raises_usage

NOUNS = "river garden teacher window engine harbour painter bridge castle doctor forest village".split()
NAMES = "Danube Rhine Elbe".split()
VERBS = "opened closed moved painted sketched repaired crossed visited".split()


def make_sentences(count: int) -> list[str]:
    """Return distinct sentences that have every kind of variant."""
    source = np.random.default_rng(0)
    found: dict[str, None] = {}
    while len(found) < count:
        (a, b, c, d), (verb, other) = source.choice(NOUNS, 4, replace=False), source.choice(VERBS, 2, replace=False)
        found[f"The {a} {verb} the {b} because the {c} {other} the {d}."] = None
    return list(found)


def vector_of(text: str, width: int = 32) -> np.ndarray:
    """Return a vector that depends only on the text."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).normal(size=width)


def content(sentence: str) -> np.ndarray:
    """Return the sum of word vectors without stop words, independent of order, case and hyphens."""
    words = sorted(word for word in re.findall(r"\w+", sentence.lower()) if word not in STOP_WORDS)
    return np.sum([vector_of(word) for word in words], axis=0)


def without_style(sentences) -> np.ndarray:
    return np.stack([content(sentence) for sentence in sentences])


def with_style(sentences) -> np.ndarray:
    """Return an embedding with one more dimension: whether the sentence is an original, not a variant."""
    originals = set(make_sentences(200))
    return np.stack([np.append(content(sentence), sentence in originals) for sentence in sentences])


def by_kind(scores: list[VariantScore]) -> dict[str, VariantScore]:
    assert [score.kind for score in scores] == [*VARIANTS, CONTENT_CHANGED]
    return {score.kind: score for score in scores}


@pytest.mark.parametrize("count", [20, 43, 100])  # folds of equal and of unequal size
def test_removed_style_scores_exactly_50(count):
    scores = by_kind(probe(without_style, make_sentences(count)))
    changed = scores.pop(CONTENT_CHANGED)
    assert {astuple(score)[1:] for score in scores.values()} == {(count, 1.0, 0.0, 50.0, 0.0)}
    assert changed.n == count and changed.cosine < 0.95 and changed.cosine_sd > 0


def test_equal_embeddings_score_exactly_50():
    """So does the control, unlike for an encoder that removes only style."""
    scores = probe(lambda sentences: np.full((len(sentences), 3), 0.1, dtype=np.float32), make_sentences(33))
    assert {astuple(score)[1:] for score in scores} == {(33, 1.0, 0.0, 50.0, 0.0)}


def test_kept_style_scores_100():
    for score in probe(with_style, make_sentences(100)):
        assert (score.n, score.style_accuracy, score.style_accuracy_sd) == (100, 100.0, 0.0)


def test_classifier_is_tested_on_unseen_sentences():
    """Independent embeddings with as many dimensions as sentences: the whole training set can be learned, nothing
    about the test set. A sentence in training and its variant in the test would be told apart by what they share."""

    def encode(sentences):
        return np.stack([vector_of(content(s).tobytes().hex(), 300) + 0.1 * vector_of(s, 300) for s in sentences])

    for score in probe(encode, make_sentences(200))[:-1]:
        assert score.n == 200 and score.cosine > 0.95
        assert 40 < score.style_accuracy < 60 and score.style_accuracy_sd > 0


def test_accuracy_and_standard_deviation_are_over_the_folds():
    """Half of the variants show their style. The others are at chance, and the folds differ."""

    def encode(sentences):
        shown = [sentence.count("-") > 1 and len(sentence) % 2 for sentence in sentences]
        return np.stack([np.append(content(sentence), 50 * s) for sentence, s in zip(sentences, shown)])

    sentences = make_sentences(100)
    share = np.mean([len(hyphen_joined(sentence)) % 2 for sentence in sentences])
    score = by_kind(probe(encode, sentences))["hyphen-joined"]
    assert 0.3 < share < 0.7
    assert score.style_accuracy == pytest.approx(50 + 50 * share, abs=3)
    assert 1 < score.style_accuracy_sd < 15


def test_cosine_matches_plain_loops():
    def encode(sentences):
        return np.stack([vector_of(sentence, 4) for sentence in sentences]).astype(np.float32)

    sentences = make_sentences(30)
    pairs = [encode([sentence, hyphen_joined(sentence)]).astype(np.float64) for sentence in sentences]
    cosines = [x @ y / math.sqrt((x @ x) * (y @ y)) for x, y in pairs]
    score = by_kind(probe(encode, sentences))["hyphen-joined"]
    assert (score.cosine, score.cosine_sd) == pytest.approx((np.mean(cosines), np.std(cosines, ddof=1)), rel=1e-9)


def test_each_distinct_sentence_is_encoded_once_in_one_call():
    sentences, calls = make_sentences(30), []
    scores = probe(lambda strings: calls.append(list(strings)) or without_style(strings), iter(sentences + sentences))
    assert {score.n for score in scores} == {30}
    (strings,) = calls
    made = {make(sentence) for sentence in sentences for make in VARIANTS.values()}
    assert len(strings) == len(set(strings)) == 6 * 30 and set(sentences) | made < set(strings)


def test_control_replaces_content_words_but_no_names():
    sentences, calls = [f"The {name} {verb} {noun}s." for name in NAMES for verb in VERBS for noun in NOUNS], []
    probe(lambda strings: calls.append(strings) or without_style(strings), sentences)
    known = {"the", *map(str.lower, NAMES), *VERBS, *(f"{noun}s" for noun in NOUNS)}
    lower = {variant.casefold() for sentence in sentences for make in VARIANTS.values() if (variant := make(sentence))}
    changed = [string for string in calls[0] if string not in sentences and string.casefold() not in lower]
    words = {word for string in changed for word in re.findall(r"\w+", string)}
    assert len(changed) > 50 and {word.lower() for word in words} <= known
    assert not words & set(map(str.lower, NAMES)), "a name in lower case would give the change away"


def test_scores_depend_on_the_seed():
    sentences = make_sentences(40)
    noisy = lambda strings: without_style(strings) + np.stack([vector_of(string) for string in strings])  # noqa: E731
    first, again, other = probe(noisy, sentences), probe(noisy, sentences), probe(noisy, sentences, seed=1)
    assert first == again
    assert first[-1].cosine != other[-1].cosine, "other words are exchanged"
    assert first[0].cosine == other[0].cosine and first[0].style_accuracy != other[0].style_accuracy, "other folds"


def test_kinds_with_too_few_sentences_are_not_measured():
    short = [f"The {noun} {verb} slowly." for noun in NOUNS for verb in VERBS]
    calls = []
    scores = by_kind(probe(lambda s: calls.append(s) or without_style(s), short + make_sentences(FEWEST - 1)))
    few = scores.pop("clause order restated")
    assert few.n == FEWEST - 1 and all(map(math.isnan, astuple(few)[2:]))
    assert not [string for string in calls[0] if string.startswith("Because")], "nor encoded"
    assert {score.n for score in scores.values()} == {len(short) + FEWEST - 1}
    assert all(math.isfinite(value) for score in scores.values() for value in astuple(score)[1:])


@pytest.mark.parametrize("count", [0, FEWEST - 1])
def test_too_few_sentences_are_rejected(count):
    message = f"({count} stop words removed, {count} clause order restated, {count} capitalized, "
    with raises_usage(found=message, needed=f"{FEWEST} or more of at least one kind", fix="longer") as error:
        probe(without_style, make_sentences(count))
    assert f"{count} content changed)" in error.value.found


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_embeddings_are_rejected(value):
    def encode(sentences):
        embeddings = without_style(sentences)
        embeddings[[3, 5], 1] = value
        return embeddings

    with raises_usage(found="2 of 120 embeddings are zero, NaN or infinite, the first for '", fix="precision"):
        probe(encode, make_sentences(20))


def test_embeddings_of_length_0_are_rejected():
    with raises_usage(found="1 of 120 embeddings are zero"):
        probe(lambda strings: without_style(strings) * (np.arange(len(strings)) != 7)[:, None], make_sentences(20))


@pytest.mark.parametrize("encode", [lambda s: without_style(s)[1:], lambda s: without_style(s)[:, 0]])
def test_encoder_must_return_one_row_per_sentence(encode):
    with raises_usage(found="for 120 sentences", needed="one row per sentence"):
        probe(encode, make_sentences(20))


def test_classifier_converges_with_many_features_of_different_scale():
    """Correlated features with different scales and offsets, like those of encoders."""
    source = np.random.default_rng(0)
    mix, scale = source.normal(size=(64, 64)) / 8, np.exp(3 * source.normal(size=64))

    def encode(strings):
        return (np.stack([vector_of(string, 64) for string in strings]) @ mix + 2) * scale

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = probe(encode, make_sentences(120))
    assert all(30 < score.style_accuracy < 70 for score in scores) and FOLDS == 5
