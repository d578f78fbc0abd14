"""The variants of a sentence on examples written by hand, and the probe on encoders whose answer is known."""

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
    capitalized,
    clause_order_restated,
    content_replaced,
    hyphen_joined,
    probe,
    stop_words_removed,
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


@pytest.mark.parametrize(
    "sentence, variant",
    [
        ("The dog sleeps in the old house.", "dog sleeps old house."),
        ("A dog and a cat saw him.", "dog cat saw."),
        ("However, the dog (and the cat) sleeps, which is good!", "However, dog (cat) sleeps, good!"),
        ("It is here, in Zürich, that she\u2019s living.", "Zürich, living."),
        ("I'm sure they've seen the dog's house", "sure seen dog's house"),
        ("a dog sleeps in the house .", "dog sleeps house ."),
        ("Dogs, which, of course, sleep.", "Dogs, course, sleep."),
        # Negations, conditions and quantities stay.
        ("He does not sleep, nor does she ever eat.", "not sleep, nor ever eat."),
        ("She didn't see the dog and can\u2019t see the cat.", "didn't see dog can\u2019t see cat."),
        ("If all of the dogs sleep, no cat is without a mouse.", "If all dogs sleep, no cat without mouse."),
        # So do names.
        ("The Who and the US Navy met in May.", "Who US Navy met May."),
        ("I know that A is the best and I win.", "know A best win."),
        ("US forces are in the city.", "US forces city."),
        ("The up-to-date house", "up-to-date house"),
    ],
)
def test_stop_words_removed(sentence, variant):
    assert stop_words_removed(sentence) == variant


@pytest.mark.parametrize(
    "sentence", ["", "   ", "...", "Old dogs sleep.", "He is in the house.", "It was the dog .", "Not"]
)
def test_sentences_without_stop_words(sentence):
    assert stop_words_removed(sentence) is None


def test_stop_words_are_lower_case_and_no_negations():
    assert 100 < len(STOP_WORDS) < 160 and all(word.isalpha() and word.islower() for word in STOP_WORDS)
    assert not STOP_WORDS & set("not no never nor neither none nobody nothing without if unless before after".split())


@pytest.mark.parametrize(
    "front, back",
    [
        ("Because the dog barked, the cat left.", "The cat left because the dog barked."),
        ("After winning the race, she went home.", "She went home after winning the race."),
        ("Before he moved to Zürich, Ann Lee had met him!", "Ann Lee had met him before he moved to Zürich!"),
        ("Because I was tired, I went home", "I went home because I was tired"),
        ("Although the dog barked, the cat stayed.", "The cat stayed, although the dog barked."),
        ("While the “old dog” slept, the cat (a tabby) ate.", "The cat (a tabby) ate, while the “old dog” slept."),
        ("Even though it rained, many people came .", "Many people came, even though it rained ."),
    ],
)
def test_clause_order_restated_there_and_back(front, back):
    assert clause_order_restated(front) == back
    assert clause_order_restated(back) == front


@pytest.mark.parametrize(
    "sentence, variant",
    [
        # What goes to the end: a comma before it but where English has none.
        ("When the bell rang, the cat left.", "The cat left when the bell rang."),
        ("If you see it, run 1,000 miles...", "Run 1,000 miles if you see it..."),
        ("On January 29, 2020, the round was drawn.", "The round was drawn, on January 29, 2020."),
        ("In the film, three men open a bank.", "Three men open a bank, in the film."),
        ("During the invasion of the island, he led the army.", "He led the army, during the invasion of the island."),
        ('In late May 1908, "Nautilus" was sold.', '"Nautilus" was sold, in late May 1908.'),
        ("According to the US Navy, It was lost.", "It was lost, according to the US Navy."),
        ("When she was ten, she moved to York.", "She moved to York when she was ten."),
        # What comes to the front: names keep their capital.
        ("Ann sang a song while Ben danced.", "While Ben danced, Ann sang a song."),
        ("US forces had left, although the war went on.", "Although the war went on, US forces had left."),
        ("The song was loud because of a mistake.", "Because of a mistake, the song was loud."),
    ],
)
def test_clause_order_restated(sentence, variant):
    assert clause_order_restated(sentence) == variant


@pytest.mark.parametrize(
    "sentence",
    [
        "",
        "?!",
        "The dog sleeps in the house.",
        "He bought some bread, milk and eggs.",
        "In the small town there were dogs, cats, and birds.",
        "The dog barked, and the cat left.",  # what came first
        "The film was short, but the book was long.",
        "The dog barked at night; the cat left.",
        "When did he leave, and why did he leave?",
        "Although it rained, they came home?",
        "In the old town, the dogs barked, although the cats had left.",
        "In 1908, she left the city.",  # too short
        "He left the city because so.",
        "Ann left because the dog barked.",
        "She left because the dog barked.",
        "In 1908 Ann founded Acme, the first shop of its kind.",
        "In 1908 Ann founded Acme, the first shop that was open at night.",
        "In 1908 Ben met Ann, who was ill.",
        "In 1908 Ben met Ann, and she was ill.",
        "In 1908 Ben met Ann, because she was ill.",
        "In 1908 she was in Rome, later she was in York.",
        "After the band left the city, it was quiet.",  # "It was quiet after the band left the city": another it?
        "After Rome and the cities fell, ruling kings were rare.",
        "Ann was born in Rome, where she was happy.",
        "Ann met him on March 3, when the bank was closed.",
        "She moved to a school in York, after which she moved to Rome.",
        "He said that he left because the dog barked.",
        "He did not sing because the dog barked.",
        "He didn\u2019t sing because the dog barked.",
        "He was tired but went home because the dog barked.",
        "He left the city only because the dog barked.",
        "He left it long because of her.",
        "He left the city shortly after moving there.",
        "He left the city in 1908 after moving there.",
        "The only reason it failed was because it rained.",
        "The boy was named after his old father.",
        "Ann left the house because Ben cried while the dog barked.",
        'He said: "It is late because the train broke."',
        'He said "it is late because the train" broke down.',
        "Ann (and Ben because the dog barked) went home.",
        '"Because the dog barked," he said to me.',
        'He sang "one and two," then slept because it rained.',
        'Although it rained, he sang the "Song of Rome."',
        "Although it rained, the cat left; the dog stayed.",
        "Of the twenty people, ten were killed.",
        "The dog barked at night. Ann left because the dog barked.",
        "At 4 p.m. sharp or 5 p.m., she returned to the room.",
        "Was the dog loud because it was hungry",
        "! ! because of the dog",
    ],
)
def test_sentences_without_two_clear_clauses(sentence):
    assert clause_order_restated(sentence) is None


@pytest.mark.parametrize(
    "sentence, variant",
    [
        ("the dog sees 2 cats.", "The Dog Sees 2 Cats."),
        ("He said: \"it's (the) dog's 3rd well-known élan\"", "He Said: \"It's (The) Dog's 3rd Well-known Élan\""),
        ("the US  Navy", "The US  Navy"),
        ("ǆep", "ǅep"),  # one letter, whose capital at the head of a word is not its capital elsewhere
        ("Old Dogs Sleep.", None),
        ("犬", None),
        ("", None),
    ],
)
def test_capitalized(sentence, variant):
    assert capitalized(sentence) == variant
    assert variant is None or variant.lower() == sentence.lower()


@pytest.mark.parametrize(
    "sentence, variant",
    [
        ("The dog sleeps.", "The-dog-sleeps."),
        ("The dog, an up-to-date  one, doesn\u2019t sleep?!", "The-dog,-an-up-to-date-one,-doesn\u2019t-sleep?!"),
        ("the dog sleeps . ", "the-dog-sleeps . "),
        ("Élan vital", "Élan-vital"),
        ("Sleep!", None),
        ("Sleep .", None),
        ("", None),
    ],
)
def test_hyphen_joined(sentence, variant):
    assert hyphen_joined(sentence) == variant


@pytest.mark.parametrize(
    "sentence, words, variant",
    [
        ("The dog barked.", ["slept"], "The dog slept."),
        ("The Danube is not with the US.", ["rhine"], "The Rhine is not with the US."),
        ("ÉLAN!", ["Vital"], "VITAL!"),
        ("the élan", ["Vital"], "the vital"),
        ("The dog barked.", ["Barked", "slept", "barked"], "The dog slept."),  # a different one
        ("It's the well-known cat's don\u2019t-care 1908s after which both were never seen", ["dogs"], "SEEN"),
        ("The dog barked.", ["barked"], None),
        ("The dog barked.", [], None),
        ("He has a dog, before which there were none.", ["slept"], None),
        ("", ["slept"], None),
    ],
)
def test_content_replaced(sentence, words, variant):
    variant = sentence.replace("seen", "dogs") if variant == "SEEN" else variant
    for seed in range(5):
        assert content_replaced(sentence, words, np.random.default_rng(seed)) == variant


def test_content_replaced_draws_both_words():
    source = np.random.default_rng(0)
    sentence, words = "The painter crossed the bridge.", ["bridge", "moon", "star", "painter"]
    found = {content_replaced(sentence, words, source) for _ in range(100)}
    assert found == {
        *("The moon crossed the bridge.", "The painter moon the bridge.", "The painter crossed the moon."),
        *("The star crossed the bridge.", "The painter star the bridge.", "The painter crossed the star."),
    }


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
    """One dimension more, that says whether a sentence is as the authors of the variants would leave it."""
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
    """The control too, unlike for an encoder that removes only style."""
    scores = probe(lambda sentences: np.full((len(sentences), 3), 0.1, dtype=np.float32), make_sentences(33))
    assert {astuple(score)[1:] for score in scores} == {(33, 1.0, 0.0, 50.0, 0.0)}


def test_kept_style_scores_100():
    for score in probe(with_style, make_sentences(100)):
        assert (score.n, score.style_accuracy, score.style_accuracy_sd) == (100, 100.0, 0.0)


def test_classifier_is_tested_on_unseen_sentences():
    """Embeddings that share nothing, in as many dimensions as sentences: all of the training set can be learnt, nothing
    about the test set. A sentence in training and its variant in the test would be told apart by what they share."""

    def encode(sentences):
        return np.stack([vector_of(content(s).tobytes().hex(), 300) + 0.1 * vector_of(s, 300) for s in sentences])

    for score in probe(encode, make_sentences(200))[:-1]:
        assert score.n == 200 and score.cosine > 0.95
        assert 40 < score.style_accuracy < 60 and score.style_accuracy_sd > 0


def test_accuracy_and_standard_deviation_are_over_the_folds():
    """Half of the variants show their style: the others are even odds at best, and the folds differ."""

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
