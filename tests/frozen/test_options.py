"""Options that all functions share: the pooling of a model without one."""

import numpy as np
import pytest

from informin import distill, embed, fit
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
    with raises_usage("device", found="without a model"):
        fit(task="search", embeddings=np.ones((3, 4)), device="cpu")
