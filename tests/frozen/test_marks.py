"""Words of a query in a text."""

import pytest

from informin.frozen.bm25 import BM25
from informin.frozen.search_page import matching_spans


def marked(text: str, query: str, language: str = "english") -> list[str]:
    (spans,) = matching_spans([text], query, BM25(None, language).split)
    return [text[start:end] for start, end in spans]


@pytest.mark.parametrize(
    "text, query, words",
    [
        ("Two universities, one University.", "which university", ["universities", "University"]),
        ("It is a school: is it?", "is it", []),  # stop words
        ("pre-trained (and re-trained)", "trained", ["trained", "trained"]),
        ("“Dogs” and (cats).", "dog cat", ["Dogs", "cats"]),
        ("C# or C++, but not C", "c#", ["C#"]),
        ("\uff24\uff4f\uff47, do\u00adgs and dog\u200bhouse", "dog", ["\uff24\uff4f\uff47", "do\u00adgs", "dog"]),
        ("nothing here", "dog", []),
        ("", "dog", []),
        ("a dog", "", []),
    ],
)
def test_words_are_marked_by_their_stems(text, query, words):
    assert marked(text, query) == words


@pytest.mark.parametrize(
    "text, query, words",
    [
        ("我喜欢图书馆和书。", "图书馆", ["图书馆", "书"]),
        ("日本のPython3入門", "python3", ["Python3"]),
        ("कमल और कमला", "कमल", ["कमल"]),
    ],
)
def test_scripts_of_other_languages_are_marked(text, query, words):
    assert marked(text, query, "other") == words


def test_each_text_has_its_own_spans():
    split = BM25(None, "english").split
    assert matching_spans(["a dog", "a cat", "dogs"], "dog", split) == [[(2, 5)], [], [(0, 4)]]


def test_words_without_accents_are_marked():
    words = BM25.build(["Un cœur, une porte fermée", "une porte fermee"], "french")
    assert matching_spans(["Un cœur, une porte fermée"], "coeur fermee", words.numbers) == [[(3, 7), (19, 25)]]
