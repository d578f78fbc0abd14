"""The choice of a preset and the words of the verdict."""

import numpy as np
import pytest

from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import HELPS, PRESET_RECORD, PRESETS, TRACK_RECORD, UNCLEAR, Choice, Prediction
from informin.jobs import verdict
from informin.jobs.verdict import chosen_adapter, reason, verdict_line
from tests.adapters.test_prediction import TEXTS

VECTORS = np.random.default_rng(0).normal(size=(len(TEXTS), 8))


def choice(preset: str, encoder, rows: int = len(TEXTS), **given):
    """Return the preset, the adapter and the prediction."""
    options = {"n_neighbors": 5, "whitening": None, "self_weight": None, **given}
    return chosen_adapter(preset, options, encoder, VECTORS[:rows], TEXTS[:rows], seed=3)


@pytest.fixture
def encoder():
    def encode(texts):
        return {"mean": np.random.default_rng(1).normal(size=(len(texts), 8))}

    encode.poolers = ["mean"]
    encode.for_queries = lambda: encode
    return encode


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_preset_sets_options_that_others_override(preset, encoder):
    name, adapter, predicted, _ = choice(preset, encoder)
    assert predicted is not None and name == preset
    expected = LinearAdapter(**PRESETS[preset], n_neighbors=5, random_state=3)
    assert adapter.get_params() == expected.get_params()
    _, adapter, *_ = choice(preset, encoder, whitening=0.1, self_weight=0.9)
    assert adapter.get_params() == expected.set_params(whitening=0.1, self_weight=0.9).get_params()


def test_auto_uses_the_choice(monkeypatch, encoder):
    def choose(tests, **given):
        assert given == {"n_neighbors": 5, "self_weight": 0.6, "random_state": 3}
        return Choice(
            "some_name", LinearAdapter(**{**given, "whitening": 0.2}).fit(tests[0].fit_on), Prediction(0.5, 0.1, 80)
        )

    monkeypatch.setattr(verdict, "choose", choose)
    name, adapter, predicted, _ = choice("auto", encoder, self_weight=0.6)
    assert (name, adapter.self_weight, adapter.whitening, adapter.n_neighbors) == ("some_name", 0.6, 0.2, 5)
    assert predicted == Prediction(0.5, 0.1, 80)
    assert reason(predicted) == "because its predicted gain is larger" and HELPS in verdict_line(predicted, True)


def test_auto_with_few_texts_is_the_safer_preset(encoder):
    name, adapter, predicted, _ = choice("auto", encoder, rows=100)
    assert name == "short_texts" and adapter.whitening == 0 and reason(predicted) == "the safer one"


@pytest.mark.parametrize(("preset", "whitening"), [("auto", 0.3), ("documents", 0.3), ("short_texts", 0)])
def test_vectors_without_a_model_have_no_verdict(preset, whitening):
    name, adapter, predicted, curve = chosen_adapter(preset, {"self_weight": 0.9}, None, VECTORS, [])
    assert (adapter.self_weight, adapter.whitening) == (0.9, whitening) and predicted is None and curve == []
    assert name == ("documents" if preset == "auto" else preset)


def test_the_verdict_has_its_track_record(monkeypatch):
    monkeypatch.setitem(TRACK_RECORD, HELPS, (20, 17))
    monkeypatch.setitem(PRESET_RECORD, HELPS, (30, 9))
    shown = verdict_line(Prediction(0.6, 0.1, 1000, halves=0.5), chosen=True)
    assert shown.startswith(f"{HELPS}.") and "17 of 20" in shown
    assert "its second half changes by -39%" in shown and "of the text changes by -18%" in shown  # exp(-0.5), exp(-0.2)
    assert "+0.60 (95% interval +0.40 to +0.80)" in shown
    assert "9 of 30" in verdict_line(Prediction(0.6, 0.1, 1000, halves=0.5), chosen=False)
    assert verdict_line(Prediction(0.5, 0.1, 12), chosen=True).startswith(f"{UNCLEAR} (12 texts")
