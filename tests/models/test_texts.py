"""Encoders take lists of texts, and nothing else."""

import numpy as np
import pytest

from informin.models.encode import encode
from informin.models.open_model import load_model
from informin.models.texts import as_texts
from tests.conftest import make_sentences, raises_usage

TEXTS = make_sentences(3)


@pytest.fixture(scope="module")
def encoders(bert):
    native = load_model(str(bert), ("cls",))
    return {
        "native": native,
        "st": load_model(str(bert), ("auto",), backend="st"),
        "encode": lambda texts: encode(native.module, native.tokenizer, texts),
    }


@pytest.mark.parametrize("kind", ["native", "st", "encode"])
def test_every_encoder_takes_lists_of_texts_alone(encoders, kind):
    found = encoders[kind]
    (expected,) = found(TEXTS).values()
    for given in (tuple(TEXTS), np.array(TEXTS), iter(TEXTS)):
        (embeddings,) = found(given).values()
        assert np.array_equal(embeddings, expected)
    for wrong, message in (
        ("a dog", "is one text, 'a dog'"),
        (b"a", "is a bytes"),
        (5, "is a int"),
        ([5], "contains 5"),
        (["a", None], "contains None"),
        (np.array("a dog"), "cannot be listed"),
    ):
        with raises_usage(option="sentences", found=message, needed="a list of sentences"):
            found(wrong)
    with raises_usage(found="'\\ud800' is not valid Unicode"):
        found(["a", "\ud800"])


def test_texts_are_returned_as_a_list():
    assert as_texts(text for text in TEXTS) == TEXTS and as_texts([]) == []
