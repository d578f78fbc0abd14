"""Variants of sentences compared with examples written by hand."""

import numpy as np
import pytest

from informin.figures.redundancy import (
    STOP_WORDS,
    capitalized,
    clause_order_restated,
    content_replaced,
    hyphen_joined,
    stop_words_removed,
)


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
