"""Where the words of a query stand in a text, by the words and stems of an index."""

from collections.abc import Callable, Sequence
from typing import Any

import regex

from informin.evaluation.accents import CHARACTER
from informin.evaluation.words import RUN, UNSPACED_START

NO_SPACES = regex.compile(r"[^\s\u200b]+")
EDGE = regex.compile(r"^[\p{P}\p{S}--[#+]]+|[\p{P}\p{S}--[#+]]+$", regex.V1)  # but c# and c++ are words
LETTERS = regex.compile(r"[\p{L}\p{M}\p{N}_\p{Cf}]+")
Split = Callable[[Sequence[str]], list[list[Any]]]
Span = tuple[int, int]


def matching_spans(texts: Sequence[str], query: str, split: Split) -> list[list[Span]]:
    """Return for each text the spans (start, end) of words that are also in the query.

    Args:
        texts: N texts.
        query: The query.
        split: Function from texts to the words of each that are compared, such as `Words.numbers`.
    """
    wanted = set(split([query])[0])
    return [joined(_matching(text, wanted, split)) for text in texts]


def joined(spans: Sequence[Span]) -> list[Span]:
    """Return spans in order, those that touch or overlap as one."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _matching(text: str, wanted: set[str], split: Split) -> list[Span]:
    """Return the spans of a text whose words are wanted."""
    pieces = [match.span() for match in NO_SPACES.finditer(text)]
    spans: list[Span] = []
    parts: list[Span] = []
    for (start, end), words in zip(pieces, split([text[start:end] for start, end in pieces])):
        if not wanted.intersection(words):
            continue
        if len(words) == 1:
            spans.append(_without_edges(text, start, end))
        else:
            parts += _spans_of_parts(text, start, end)
    words_of = split([text[start:end] for start, end in parts])
    return spans + [span for span, words in zip(parts, words_of) if wanted.intersection(words)]


def _without_edges(text: str, start: int, end: int) -> Span:
    """Return a span without the punctuation at its ends."""
    kept = EDGE.sub("", text[start:end])
    begin = text.index(kept, start)
    return begin, begin + len(kept)


def _spans_of_parts(text: str, start: int, end: int) -> list[Span]:
    """Return the runs of letters of a span, those of scripts without spaces character by character."""
    parts = []
    for letters in LETTERS.finditer(text, start, end):
        for run in RUN.finditer(text, *letters.span()):
            unit = CHARACTER if UNSPACED_START.match(run[0]) else LETTERS
            parts += [match.span() for match in unit.finditer(text, *run.span())]
    return parts
