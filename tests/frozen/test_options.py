"""Options that all functions share: the pooling of a model without one, and the language of words."""

import numpy as np
import pytest

from informin import distill, embed, evaluate, fit
from tests.conftest import make_sentences, raises_usage
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


def test_the_language_of_words_decides_their_scores(st_mean, tmp_path):
    """German stems find the plural."""
    others = make_sentences(20)
    rows = ["query\tdocument", "Häuser\tdas Haus am See", *(f"{text}\t{text}" for text in others)]
    path = tmp_path / "faq.tsv"
    path.write_text("\n".join(rows) + "\n")
    found = {}
    for language in ("german", "de", "english"):
        output = tmp_path / "r.json"
        result = evaluate(st_mean, retrieval=path, language=language, output=output, device="cpu")
        task = result.rows[0].tasks["faq"]
        found[language] = task["bm25"]["queries"]["ndcg_10"][0]
        assert task["language"] == ("english" if language == "english" else "german")
    assert found == {"german": 100, "de": 100, "english": 0}
    with raises_usage("language"):
        evaluate(st_mean, retrieval=path, language="klingon", device="cpu")
