"""Long texts in windows."""

from dataclasses import replace

import numpy as np
import pytest

import informin
from informin.evaluation.geometry import unit
from informin.models.windows import Windows, _cut, told_truncated
from tests.conftest import make_sentences, raises_usage
from tests.models.any_encoder.helpers import sentence_transformer
from tests.models.any_encoder.st_models import static

LONG = " ".join(make_sentences(12))
SHORT = "a cat sat"


@pytest.fixture(params=["native", "st"])
def model(request, bert, tmp_path):
    return informin.load_model(
        sentence_transformer(bert, tmp_path / "model"), device="cpu", max_length=16, backend=request.param, prompt=""
    )


def windows_of(model, text: str) -> list[str]:
    return Windows(model)._windows([text])[text]


def tokens(model, text: str) -> list[int]:
    return model.tokenizer(text, add_special_tokens=False)["input_ids"]


def test_windows_are_the_whole_text_and_fit(model):
    windows = windows_of(model, LONG)
    count = len(tokens(model, LONG))
    assert [token for window in windows for token in tokens(model, window)] == tokens(model, LONG)
    assert all(len(tokens(model, window)) <= 14 for window in windows)
    assert count / 14 <= len(windows) <= count / 14 + 2
    assert all(len(tokens(model, window)) >= 7 for window in windows)


def test_a_long_text_has_the_mean_of_its_windows_and_others_their_own_embedding(model):
    found = Windows(model).__call__([SHORT, LONG, SHORT])[model.poolers[0]]
    own = model.encode([SHORT])[0]
    np.testing.assert_allclose(found[[0, 2]], [own, own], atol=1e-6)
    parts = model.encode(windows_of(model, LONG))
    np.testing.assert_allclose(unit(found[1:2])[0], unit(unit(parts).mean(0, keepdims=True))[0], atol=1e-5)
    assert np.linalg.norm(found[1]) == pytest.approx(np.linalg.norm(parts, axis=1).mean(), rel=1e-5)
    assert not np.allclose(unit(found[1:2]), unit(model.encode([LONG])[:1]), atol=1e-3)


def test_the_prompt_takes_room(model):
    prompted = model.with_prompt("a cat sat on the mat ")
    room = Windows(prompted).room
    assert room < Windows(model).room == 14
    prompted.truncated = set()
    Windows(prompted)([LONG])
    assert prompted.truncated == set()


def test_cuts_are_before_words_or_within_one_that_is_too_long():
    places = [(0, 1), (2, 4), (4, 6), (7, 8), (9, 10)]  # a bbcc d e
    assert _cut("a bbcc d e", places, [0, 1, 1, 2, 3], 2) == ["a", "bbcc", "d e"]
    assert _cut("abcdef", [(i, i + 1) for i in range(6)], [0] * 6, 4) == ["abc", "def"]


def test_the_checksum_differs(model):
    assert Windows(model).sha256() != model.sha256()


def test_models_without_windows(tmp_path):
    unlimited = informin.load_model(static(tmp_path / "static"), device="cpu")
    with raises_usage(option="windows", found="does not truncate texts", fix="Leave it out."):
        Windows(unlimited)


def test_slow_tokenizers(model):
    class Slow(type(model.tokenizer)):
        is_fast = False

    tokenizer = model.tokenizer
    kind = tokenizer.__class__
    try:
        tokenizer.__class__ = Slow
        with raises_usage(option="windows", needed="a fast tokenizer of transformers"):
            Windows(replace(model))
    finally:
        tokenizer.__class__ = kind


def test_a_line_for_truncated_texts():
    assert told_truncated({"a", "b"}, 16) == "2 texts are longer than 16 tokens, and truncated."
    assert told_truncated({"a"}, 16) == "1 text is longer than 16 tokens, and truncated."
    assert told_truncated(set(), 16) is None
