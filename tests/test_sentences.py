"""The tool that prints sentences of the documentation."""

import pytest

from tools.sentences import AWKWARD, KINDS, sample, split


def test_every_kind_of_text_is_read():
    for kind in KINDS:
        assert len(list(kind())) > 50


def test_sample_has_each_kind_in_turn():
    found = sample(seed=3, count=8)
    places = [place for place, _ in found]
    assert all(place.partition(":")[0].endswith((".md", ".html")) for place in places[::4])
    assert not any(place.endswith(".md") for place in (*places[1::4], *places[2::4], *places[3::4]))
    assert sample(seed=3, count=8) == found


def test_sentences_are_split_and_headings_left_out():
    text = "One sentence is here. Another one\nfollows it: `code` in it.\n\nShort heading\n\n* a longer point of a list"
    assert split(text) == ["One sentence is here.", "Another one follows it:", "a longer point of a list"]


@pytest.mark.parametrize(
    "text",
    ["A copy is no negative.", "other embeddings than these", "another label than this one", "a function of your own"],
)
def test_awkward_sentences_are_found(text):
    assert AWKWARD.search(text)


@pytest.mark.parametrize("text", ["It is no longer here.", "A copy is not a negative.", "There is no need to wait."])
def test_plain_sentences_are_not_found(text):
    assert not AWKWARD.search(text)
