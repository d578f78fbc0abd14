"""tools/sentences.py: where sentences are found, and how they are split."""

import ast

import pytest

from tools.sentences import called, of_docstrings, of_errors, of_help, of_pages, sample, split, text_of


@pytest.mark.parametrize("found", [of_pages, of_help, of_docstrings, of_errors])
def test_each_kind_has_sentences_without_code_and_tables(found):
    sentences = [sentence for _, sentence in found()]
    assert len(sentences) > 300
    assert not [one for one in sentences if one.startswith(("|", "```", ">>>", "#", "<")) or "\n" in one]


def test_a_seed_gives_the_same_sentences():
    assert sample(1, 20) == sample(1, 20) != sample(2, 20)
    assert len(sample(1, 7)) == 7


def test_text_is_split_into_sentences():
    text = "One sentence has\nmany words. Another one, `too`: yes.\n\n* An item of a list\n* Too few\n\nThe end is near"
    assert split(text) == [
        "One sentence has many words.",
        "Another one, `too`: yes.",
        "An item of a list",
        "The end is near",
    ]


def test_the_values_of_a_message_are_marked():
    call = ast.parse('errors.UsageError(f"is {value:.2f} now")', mode="eval").body
    assert called(call) == "UsageError" and text_of(call.args[0]) == "is {...} now"
    assert text_of(ast.parse("name", mode="eval").body) == ""
