"""The verdict and the choice of `informin fit`."""

from argparse import Namespace

import numpy as np
import pytest

from informin.adapters.prediction import HELPS, HURTS, TRACK_RECORD, UNCLEAR, Prediction
from informin.cli import verdict
from informin.cli.verdict import chosen_adapter, print_verdict
from tests.adapters.test_prediction import TEXTS
from tests.conftest import raises_usage

VECTORS = np.random.default_rng(0).normal(size=(len(TEXTS), 8))


def options(recipe: str) -> Namespace:
    return Namespace(recipe=recipe, n_neighbors=5, whitening=0.1, self_weight=0.9, seed=3)


@pytest.fixture
def encoder():
    def encode(texts):
        return {"mean": np.random.default_rng(1).normal(size=(len(texts), 8))}

    encode.poolers = ["mean"]
    return encode


def test_linear_recipe_uses_the_options(encoder, capsys):
    adapter, predicted = chosen_adapter(options("linear"), encoder, VECTORS, TEXTS)
    assert predicted is not None
    assert adapter.get_params() | dict(n_neighbors=5, whitening=0.1, self_weight=0.9, random_state=3) == (
        adapter.get_params()
    )
    assert "Verdict: " in capsys.readouterr().out


def test_auto_recipe_uses_the_choice(monkeypatch, encoder, capsys):
    monkeypatch.setattr(
        verdict, "choose", lambda test, **given: ("some name", {"self_weight": 0.5}, Prediction(0.5, 0.1, 80))
    )
    adapter, predicted = chosen_adapter(options("auto"), encoder, VECTORS, TEXTS)
    assert (adapter.self_weight, adapter.whitening, adapter.n_neighbors) == (0.5, 0.25, 5)
    assert predicted == Prediction(0.5, 0.1, 80)
    shown = capsys.readouterr().out
    assert "some name" in shown and HELPS in shown


def test_auto_recipe_refuses_adapters_that_are_likely_to_hurt(monkeypatch, encoder, capsys):
    monkeypatch.setattr(verdict, "choose", lambda test, **given: ("default", {}, Prediction(-0.5, 0.1, 80)))
    with raises_usage(option="recipe", found="likely to hurt"):
        chosen_adapter(options("auto"), encoder, VECTORS, TEXTS)
    assert HURTS in capsys.readouterr().out


def test_vectors_without_a_model_have_no_verdict(capsys):
    adapter, predicted = chosen_adapter(options("linear"), None, VECTORS, [])
    assert adapter.self_weight == 0.9 and predicted is None
    assert not capsys.readouterr().out


def test_verdict_is_printed_with_its_track_record(monkeypatch, capsys):
    monkeypatch.setitem(TRACK_RECORD, HELPS, (20, 17))
    print_verdict(Prediction(0.5, 0.1, 1000))
    shown = capsys.readouterr().out
    assert shown.startswith(f"Verdict: {HELPS}.") and "factor of 0.61" in shown and "17 of 20" in shown
    print_verdict(Prediction(0.5, 0.1, 12))
    assert capsys.readouterr().out.startswith(f"Verdict: {UNCLEAR} (12 texts")
