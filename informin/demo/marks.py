"""Where the words of a query stand in a text, by the words and stems of an index."""

import unicodedata
from collections.abc import Callable, Sequence
from itertools import groupby

Split = Callable[[Sequence[str]], list[list[str]]]
Span = tuple[int, int]


def matching_spans(texts: Sequence[str], query: str, split: Split) -> list[list[Span]]:
    """Return for each text the spans (start, end) of words that are also in the query.

    Args:
        texts: N texts.
        query: The query.
        split: Function from texts to the words of each that are compared, such as `Words.split`.
    """
    wanted = {*split([query])[0]}
    runs = [word_runs(text) for text in texts]
    pieces = [text[start:end] for text, spans in zip(texts, runs) for start, end in spans]
    words = iter(split(pieces) if pieces else [])
    return [
        joined([one for span in spans for one in _matching(text, span, next(words), wanted, split)])
        for text, spans in zip(texts, runs)
    ]


def word_runs(text: str) -> list[Span]:
    """Return the spans of letters, digits and their marks in a text."""
    spans = []
    for is_word, places in groupby(range(len(text)), key=lambda place: is_word_character(text[place])):
        run = list(places)
        if is_word:
            spans.append((run[0], run[-1] + 1))
    return spans


def is_word_character(character: str) -> bool:
    """Return whether a character can be within a word: a letter, mark, digit, underscore or soft hyphen."""
    return unicodedata.category(character)[0] in "LMN" or character in "_\u00ad"


def joined(spans: Sequence[Span]) -> list[Span]:
    """Return spans in order, those that touch or overlap as one."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _matching(text: str, span: Span, words: list[str], wanted: set[str], split: Split) -> list[Span]:
    """Return the parts of a run of letters that match: all of it, or pairs of characters in scripts without spaces."""
    if not wanted.intersection(words):
        return []
    if len(words) == 1:
        return [span]
    pairs = [(start, start + 2) for start in range(span[0], span[1] - 1)]
    found = split([text[start:end] for start, end in pairs])
    return [pair for pair, words in zip(pairs, found) if wanted.intersection(words)]
