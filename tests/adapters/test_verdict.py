"""The verdict and the choice of `informin fit`."""

from argparse import Namespace

import numpy as np
import pytest

from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import HELPS, HURTS, RECIPES, TRACK_RECORD, UNCLEAR, Prediction
from informin.cli import verdict
from informin.cli.verdict import chosen_adapter, print_verdict
from tests.adapters.test_prediction import TEXTS
from tests.conftest import raises_usage

VECTORS = np.random.default_rng(0).normal(size=(len(TEXTS), 8))


def options(recipe: str, **given) -> Namespace:
    return Namespace(recipe=recipe, n_neighbors=5, seed=3, **{"whitening": None, "self_weight": None, **given})


@pytest.fixture
def encoder():
    def encode(texts):
        return {"mean": np.random.default_rng(1).normal(size=(len(texts), 8))}

    encode.poolers = ["mean"]
    return encode


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_a_recipe_sets_options_that_others_override(recipe, encoder, capsys):
    adapter, predicted = chosen_adapter(options(recipe), encoder, VECTORS, TEXTS)
    assert predicted is not None and "Verdict: " in (shown := capsys.readouterr().out) and "Recipe" not in shown
    expected = LinearAdapter(**RECIPES[recipe], n_neighbors=5, random_state=3)
    assert adapter.get_params() == expected.get_params()
    adapter, _ = chosen_adapter(options(recipe, whitening=0.1, self_weight=0.9), encoder, VECTORS, TEXTS)
    assert adapter.get_params() == expected.set_params(whitening=0.1, self_weight=0.9).get_params()


def test_auto_uses_the_choice(monkeypatch, encoder, capsys):
    def choose(test, **given):
        assert given == {"n_neighbors": 5, "self_weight": 0.6, "random_state": 3}
        return "some_name", {**given, "whitening": 0.2}, Prediction(0.5, 0.1, 80)

    monkeypatch.setattr(verdict, "choose", choose)
    adapter, predicted = chosen_adapter(options("auto", self_weight=0.6), encoder, VECTORS, TEXTS)
    assert (adapter.self_weight, adapter.whitening, adapter.n_neighbors) == (0.6, 0.2, 5)
    assert predicted == Prediction(0.5, 0.1, 80)
    shown = capsys.readouterr().out
    assert shown.startswith("Recipe: some_name, because its predicted gain is larger.") and HELPS in shown


def test_auto_refuses_an_adapter_that_is_likely_to_hurt(monkeypatch, encoder, capsys):
    monkeypatch.setattr(verdict, "choose", lambda test, **given: ("documents", given, Prediction(-0.5, 0.1, 80)))
    with raises_usage(option="recipe", found="likely to hurt", fix="with the recipe documents"):
        chosen_adapter(options("auto"), encoder, VECTORS, TEXTS)
    assert HURTS in capsys.readouterr().out


def test_auto_says_if_embeddings_are_nearly_alike(monkeypatch, encoder, capsys):
    nearly_alike = Prediction(0.5, 0.1, 80, mean_cosine=0.8)
    monkeypatch.setattr(verdict, "choose", lambda test, **given: ("documents", given, nearly_alike))
    chosen_adapter(options("auto"), encoder, VECTORS, TEXTS)
    assert capsys.readouterr().out.startswith("Recipe: documents, because the embeddings are nearly alike.")


def test_auto_with_few_texts_is_the_safer_recipe(encoder, capsys):
    adapter, _ = chosen_adapter(options("auto"), encoder, VECTORS[:100], TEXTS[:100])
    assert adapter.whitening == 0 and capsys.readouterr().out.startswith("Recipe: short_texts, the safer one.")


@pytest.mark.parametrize(("recipe", "whitening"), [("auto", 0.3), ("documents", 0.3), ("short_texts", 0)])
def test_vectors_without_a_model_have_no_verdict(capsys, recipe, whitening):
    adapter, predicted = chosen_adapter(options(recipe, self_weight=0.9), None, VECTORS, [])
    assert (adapter.self_weight, adapter.whitening) == (0.9, whitening) and predicted is None
    shown = capsys.readouterr().out
    assert "--recipe short_texts" in shown if recipe == "auto" else not shown


def test_verdict_is_printed_with_its_track_record(monkeypatch, capsys):
    monkeypatch.setitem(TRACK_RECORD, HELPS, (20, 17))
    print_verdict(Prediction(0.5, 0.1, 1000))
    shown = capsys.readouterr().out
    assert shown.startswith(f"Verdict: {HELPS}.") and "factor of 0.61" in shown and "17 of 20" in shown
    print_verdict(Prediction(0.5, 0.1, 12))
    assert capsys.readouterr().out.startswith(f"Verdict: {UNCLEAR} (12 texts")
