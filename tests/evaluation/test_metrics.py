"""The `evaluate` modules: loaded from their folders without a network, equal to the functions they offer."""

import doctest
import math
import socket
import sys

import evaluate
import numpy as np
import pytest

from informin.evaluation.encode import alignment, uniformity
from informin.evaluation.pairs import correlations
from tests.conftest import ROOT

METRICS = ROOT / "informin/evaluation/metrics"
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(2, 12, 5))


def refuse(*_):
    raise AssertionError("a metric module asked for the network")


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Return a function that loads a module with evaluate.load(), with a temporary cache and no network."""
    cache = tmp_path_factory.mktemp("evaluate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate.config, "HF_MODULES_CACHE", cache / "modules")
        patch.setattr(evaluate.config, "HF_METRICS_CACHE", cache / "metrics")
        # First: the user's own cache, which transformers may have put there, can hold one of the two modules.
        patch.setattr(sys, "path", [str(cache / "modules"), *sys.path])
        patch.setattr(socket.socket, "connect", refuse)
        yield lambda path, **options: evaluate.load(str(METRICS / path), **options)
    for name in [name for name in sys.modules if name.partition(".")[0] == "evaluate_modules"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def sts_correlation(load):
    return load("sts_correlation", keep_in_memory=True)


@pytest.fixture(scope="module")
def alignment_uniformity(load):
    return load("alignment_uniformity", keep_in_memory=True)


@pytest.mark.parametrize("name", ["sts_correlation", "alignment_uniformity"])
def test_modules_load_from_folder_and_file_and_describe_themselves(load, name):
    for module in (load(name), load(f"{name}/{name}.py")):
        assert isinstance(module, evaluate.Metric) and module.name == name
        assert set(module.features) == {"predictions", "references"}
        assert all(feature.startswith("https://") for feature in module.info.reference_urls)
        assert module.citation.strip() and module.description.strip()
        assert all(word in module.inputs_description for word in ("Args:", "Returns:", "Raises:", f"metrics/{name}"))
        x, y = (X[:, 0], Y[:, 0]) if name == "sts_correlation" else (X, Y)
        result = module.compute(predictions=x, references=y)
        assert {type(value) for value in result.values()} == {float}, "plain numbers, that a log can write"


class SameNumber(doctest.OutputChecker):
    """Accepts numbers that differ in their last bits, as between processors."""

    def check_output(self, want, got, optionflags):
        try:
            return float(got) == pytest.approx(float(want))
        except ValueError:
            return super().check_output(want, got, optionflags)


@pytest.mark.parametrize("name", ["sts_correlation", "alignment_uniformity"])
def test_examples_in_docstrings_are_correct(load, name, monkeypatch):
    monkeypatch.chdir(ROOT)
    examples = doctest.DocTestParser().get_doctest(load(name).inputs_description, {"evaluate": evaluate}, name, None, 0)
    assert doctest.DocTestRunner(SameNumber()).run(examples) == (0, 2)


def test_sts_correlation_equals_the_function(sts_correlation):
    cosines, grades = X[:, 0], np.round(Y[:, 0] * 2)  # grades with ties
    found = sts_correlation.compute(predictions=cosines, references=grades)
    assert found == correlations(cosines, grades) and set(found) == {"spearman", "pearson"}
    assert found["pearson"] == pytest.approx(100 * np.corrcoef(cosines, grades)[0, 1])
    assert found["spearman"] != pytest.approx(found["pearson"], abs=0.1)


def test_sts_correlation_in_batches_and_of_whole_numbers(sts_correlation):
    """Grades can be integers, and float64 cosines keep their precision."""
    close = 1 - np.arange(4) * 1e-12
    for start in (0, 2):
        sts_correlation.add_batch(predictions=close[start : start + 2], references=[-start, -start - 1])
    assert sts_correlation.compute() == pytest.approx({"spearman": 100.0, "pearson": 100.0}, abs=0.01)


@pytest.mark.parametrize(
    "predictions, references",
    [
        ([0.5, 0.5, 0.5], [0, 1, 2]),
        ([0.1, 0.5, 0.7], [2, 2, 2]),
        ([0.1], [2]),
        ([0.1, math.nan], [1, 2]),
        ([0.1, 0.2], [1, math.inf]),
    ],
)
def test_undefined_sts_correlation(sts_correlation, predictions, references):
    with pytest.raises(ValueError):
        sts_correlation.compute(predictions=predictions, references=references)
    assert sts_correlation.compute(predictions=[1, 2, 3], references=[1, 2, 3])["spearman"] == pytest.approx(100)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_alignment_uniformity_equals_the_functions(alignment_uniformity, dtype):
    x, y = X.astype(dtype), Y.astype(dtype)
    expected = {"alignment": alignment(x, y), "uniformity": uniformity(np.concatenate([x, y]))}
    assert alignment_uniformity.compute(predictions=x, references=y) == expected
    assert alignment_uniformity.compute(predictions=x.tolist(), references=y.tolist()) == expected


def test_equal_embeddings_of_different_sentences_are_not_merged(alignment_uniformity):
    """The uniformity of a collapsed encoder is 0, not undefined."""
    collapsed = [[1.0, 2.0]] * 3
    found = alignment_uniformity.compute(predictions=collapsed, references=collapsed)
    assert found == pytest.approx({"alignment": 0, "uniformity": 0})


@pytest.mark.parametrize(
    "predictions, references",
    [
        ([[1.0, 2]], [[1.0]]),
        ([[1.0, 2], [1.0]], [[1.0, 2], [1.0, 2]]),
        ([[1.0, math.nan]], [[math.inf, 2.0]]),
        ([[1.0]], [[1.0], [2.0]]),
    ],
)
def test_undefined_alignment_and_uniformity(alignment_uniformity, predictions, references):
    with pytest.raises(ValueError):
        alignment_uniformity.compute(predictions=predictions, references=references)
