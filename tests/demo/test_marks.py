"""Words of a query in a text."""

import pytest

from informin.demo.marks import matching_spans
from informin.evaluation.words import Words

ENGLISH = Words(None, "english").split


def marked(text: str, query: str, split=ENGLISH) -> list[str]:
    (spans,) = matching_spans([text], query, split)
    return [text[start:end] for start, end in spans]


@pytest.mark.parametrize(
    "text, query, words",
    [
        ("Two universities, one University.", "which university", ["universities", "University"]),
        ("It is a school: is it?", "is it", []),  # stop words
        ("pre-trained (and re-trained)", "trained", ["trained", "trained"]),
        ("nothing here", "dog", []),
        ("", "dog", []),
    ],
)
def test_words_are_marked_by_their_stems(text, query, words):
    assert marked(text, query) == words


def test_pairs_of_characters_are_marked_where_words_have_no_spaces():
    def split(texts):
        return [[text[place : place + 2] for place in range(max(1, len(text) - 1))] for text in texts]

    assert marked("我喜欢图书馆和书", "图书馆", split) == ["图书馆"]


def test_each_text_has_its_own_spans():
    assert matching_spans(["a dog", "a cat", "dogs"], "dog", ENGLISH) == [[(2, 5)], [], [(0, 4)]]
