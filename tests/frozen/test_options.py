"""Options of the functions: the pooling of a model without one, and values that would change results silently."""

import numpy as np
import pytest

from informin import Index, LinearAdapter, distill, duplicates, embed, fit
from tests.conftest import raises_usage
from tests.frozen.conftest import TEXTS


@pytest.mark.parametrize("function", [fit, distill])
def test_a_model_without_pooling_takes_one(bert, function):
    with raises_usage("pooler"):
        function(bert, TEXTS, task="clustering", device="cpu")
    result = function(bert, TEXTS, task="clustering", pooler="mean", max_seq_length=9, device="cpu")
    assert result.model.max_seq_length == 9 and result.model[1].pooling_mode == "mean"


def test_options_that_no_function_has_are_errors(st_mean):
    for function, more in ((fit, {"task": "search"}), (distill, {"task": "search"}), (embed, {})):
        with pytest.raises(TypeError, match="max_length"):
            function(st_mean, TEXTS, **more, max_length=9)


@pytest.mark.parametrize("option, value", [("device", "cpu"), ("prompt", "query: "), ("pooler", "cls")])
def test_options_of_a_model_need_one(option, value):
    x = np.random.default_rng(0).normal(size=(3, 4))
    with raises_usage(option, found="without a model"):
        fit(task="search", embeddings=x, **{option: value})
    with raises_usage(option, found="without a model"):
        duplicates(None, TEXTS[:3], embeddings=x, **{option: value})


@pytest.mark.parametrize(
    "option, wrong",
    [
        ("smooth", "false"),
        ("rerank", 0),
        ("word_weight", "0.5"),
        ("word_weight", float("nan")),
        ("queries", "tabel"),
        ("ids", "ab"),
        ("texts", "ab"),
    ],
)
def test_an_index_refuses_what_would_give_other_hits(st_mean, option, wrong):
    """Without an error, any text counts as True, and a text as a list of letters."""
    with raises_usage(option):
        Index.build(**{"model": st_mean, "texts": ["a dog", "a cat"], option: wrong})


@pytest.mark.parametrize("k", [0, 2.5, "3", True, None])
def test_a_number_of_hits(built, k):
    with raises_usage("k"):
        built.search("the dog", k=k)


def test_an_adapter_refuses_what_would_give_other_vectors(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 8))
    with raises_usage("smooth"):
        LinearAdapter().fit(x).transform(x, smooth="false")
    for dimension in (True, 2.5, 0, 9):
        with raises_usage("dimension"):
            fit(task="search", embeddings=x, dimension=dimension)
    result = fit(task="search", embeddings=x, dimension=np.int64(4))
    result.save(tmp_path / "out")
    with raises_usage("overwrite"):
        result.save(tmp_path / "out", overwrite="false")
