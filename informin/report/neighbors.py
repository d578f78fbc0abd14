"""Neighbors that texts lost and gained, with the words that changed marked."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WORD = re.compile(r"\w+")
COMMON = 1 / 4  # fraction of the examples with a word above which it says nothing about one of them, such as "the"
FEWEST = 3  # examples with such a word


@dataclass(frozen=True)
class Neighbor:
    """A neighbor of a text.

    Attributes:
        pieces: Its text in pieces, each with whether it is marked.
        old, new: Its cosine to the text before and after.
    """

    pieces: list[tuple[str, bool]]
    old: float
    new: float


@dataclass(frozen=True)
class Changed:
    """A text with the neighbors that it lost and gained; `kept` is how many of its 10 neighbors it kept."""

    sentence: str
    kept: int
    lost: list[Neighbor]
    gained: list[Neighbor]


def changed(examples: Sequence[Mapping]) -> list[Changed]:
    """Return examples for the page.

    A word of the text is marked in its neighbors if only the lost ones or only the gained ones have it, and it is not
    common: the language of the texts is unknown, so there is no list of stop words.

    Args:
        examples: See `informin.evaluation.drift.neighbor_examples`.
    """
    common = _common(examples)
    return [
        Changed(
            sentence=example["sentence"],
            kept=example["kept"],
            lost=_neighbors(example["lost"], _words(example) - _words(*example["gained"]) - common),
            gained=_neighbors(example["gained"], _words(example) - _words(*example["lost"]) - common),
        )
        for example in examples
    ]


def _common(examples: Sequence[Mapping]) -> set[str]:
    """Return the words that many examples have, in the text or in a neighbor."""
    having: Counter[str] = Counter()
    for example in examples:
        having.update(_words(example, *example["lost"], *example["gained"]))
    most = max(FEWEST - 1, COMMON * len(examples))
    return {word for word, number in having.items() if number > most}


def _words(*texts: Mapping) -> set[str]:
    """Return the words of texts without their case."""
    return {word.casefold() for text in texts for word in WORD.findall(text["sentence"])}


def _neighbors(listed: Sequence[Mapping], wanted: set[str]) -> list[Neighbor]:
    return [Neighbor(_pieces(one["sentence"], wanted), one["old"], one["new"]) for one in listed]


def _pieces(text: str, wanted: set[str]) -> list[tuple[str, bool]]:
    """Return a text in pieces, and whether each is a wanted word."""
    pieces = []
    last = 0
    for match in WORD.finditer(text):
        if match[0].casefold() in wanted:
            pieces += [(text[last : match.start()], False), (match[0], True)]
            last = match.end()
    pieces.append((text[last:], False))
    return [piece for piece in pieces if piece[0]]
