"""The examples in the docstrings of the objectives and views give the output they show."""

import doctest
import importlib
import pkgutil

import pytest

from informin import objectives, views

PACKAGES = (objectives, views)
MODULES = [f"{own.__name__}.{module.name}" for own in PACKAGES for module in pkgutil.iter_modules(own.__path__)]
LOSSES = {
    "attention_mi": ["attention_mi"],
    "contrast": ["contrast"],
    "decorrelation": ["decorrelation", "self_contrast"],
    "distillation": ["cosine_distance"],
    "false_negatives": ["false_negative_mask", "batch_threshold"],
    "guided_similarity": ["guided_similarity"],
    "masked_lm": ["masked_lm"],
    "reconstruction": ["reconstruction"],
}


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module, report=True).failed == 0
    examples = {test.name.rpartition(".")[2] for test in doctest.DocTestFinder().find(module) if test.examples}
    assert {*LOSSES.get(name.rpartition(".")[2], [])} <= examples
