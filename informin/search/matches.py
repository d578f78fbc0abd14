"""Where the tokens stand in a text that a second look found for the tokens of a query."""

import numpy as np
from tokenizers import Tokenizer

from informin.evaluation.tokens import Tokens, TokenVectors

Span = tuple[int, int]


def matched_spans(stored: TokenVectors, query: Tokens, place: int, text: str, tokenizer: Tokenizer) -> list[Span]:
    """Return the spans (start, end) of tokens of a text that make up most of its token score.

    They are the nearest tokens of those of the query that add at least their average to the score, without punctuation.
    Empty if the tokens of the text alone differ from those behind the prompt for documents.

    Args:
        stored: Token vectors of the index.
        query: Ids and projected vectors of the tokens of the query.
        place: Position of the text.
        text: The text.
        tokenizer: Tokenizer of the model.
    """
    ids = stored.ids[stored.starts[place] : stored.starts[place + 1]]
    encoding = tokenizer.encode(text, add_special_tokens=False)
    places = np.flatnonzero(np.isin(encoding.ids, ids))[: len(ids)]  # special tokens are not stored, nor is a cut end
    is_same = np.array_equal(np.array(encoding.ids, int)[places], ids)
    if not is_same or not len(ids) or not len(query[0]):
        return []
    nearest, cosines = stored.matches(query, place)
    added = stored.weights(query[0]) * cosines
    found = np.unique(nearest[(added > 0) & (added >= added.mean())])
    spans = (_without_spaces(text, *encoding.offsets[token]) for token in places[found])
    return [(start, end) for start, end in spans if any(map(str.isalnum, text[start:end]))]


def _without_spaces(text: str, start: int, end: int) -> Span:
    """Return the span without the space before a word, which is part of its first token in some vocabularies."""
    word = text[start:end]
    return end - len(word.lstrip()), end
