"""The tool that prints sentences of the documentation."""

import pytest

from tools import sentences
from tools.sentences import AWKWARD, KINDS, awkward, sample, split


def test_every_kind_of_text_is_read():
    """The patterns of files find those of this project."""
    for kind in KINDS:
        assert len(list(kind())) > 50


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project of one page and one file of code."""
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "code.py").write_text(CODE)
    monkeypatch.setattr(sentences, "ROOT", tmp_path)
    monkeypatch.setattr(sentences, "PAGES", ["*.md"])
    monkeypatch.setattr(sentences, "CODE", ["*.py"])


PAGE = """# A heading with many words

A page has **this sentence** here. A copy is no negative in it.

```
a block of code is left out
```

| a table is left out, too |
"""
CODE = '''"""A module has this docstring."""


class Kind:
    """A class has this docstring.

    Args:
        name: What an argument means is left out.
    """

    field = option(None, "An option has this help text.")


def function(parser, name):
    """A function has this docstring."""
    parser.add_argument("--name", "not a help text at all", help=f"A parser has {name} as help.")
    print("a text that nobody reads here")
    raise OtherError(f"{name} is another kind of error")
    raise UsageError("is wrong in this way", option="k", needed="a better number", fix="Use another one of them.")
'''


def test_each_kind_reads_its_sentences(project):
    found = {kind.__name__: list(kind()) for kind in KINDS}
    assert found == {
        "of_pages": [("page.md", "A page has this sentence here."), ("page.md", "A copy is no negative in it.")],
        "of_help": [("code.py:11", "An option has this help text."), ("code.py:16", "A parser has {...} as help.")],
        "of_docstrings": [
            ("code.py:1", "A module has this docstring."),
            ("code.py:4", "A class has this docstring."),
            ("code.py:14", "A function has this docstring."),
        ],
        "of_errors": [
            ("code.py:18", "{...} is another kind of error"),
            ("code.py:19", "is wrong in this way; expected a better number."),
            ("code.py:19", "Use another one of them."),
        ],
    }


def test_only_awkward_sentences_are_listed(project):
    assert awkward() == [("page.md", "A copy is no negative in it.")]


def test_sample_has_each_kind_in_turn(project):
    found = sample(seed=3, count=8)
    for place, sentence in enumerate(found):
        kinds = (sentences.of_pages, sentences.of_help, sentences.of_docstrings, sentences.of_errors)
        assert sentence in list(kinds[place % 4]())
    assert sample(seed=3, count=8) == found
    assert len({tuple(sample(seed, count=8)) for seed in range(9)}) > 1


def test_sentences_are_split_and_headings_left_out():
    text = "One sentence is here. Another one\nfollows it: `code` in it.\n\nShort heading\n\n* a longer point of a list"
    assert split(text) == ["One sentence is here.", "Another one follows it:", "a longer point of a list"]


@pytest.mark.parametrize(
    "text",
    [
        "A copy is no negative.",
        "other embeddings than these",
        "another label than this one",
        "a function of your own",
        "The file has another suffix.",
        "Text before every text.",
        "z-scores among all texts",
        "The package is on no index yet.",
        "Several processes",
        "Fit a matrix",
    ],
)
def test_awkward_sentences_are_found(text):
    assert AWKWARD.search(text)


@pytest.mark.parametrize(
    "text", ["It is no longer here.", "A copy is not a negative.", "There is no need to wait.", "There is no file."]
)
def test_plain_sentences_are_not_found(text):
    assert not AWKWARD.search(text)
