"""Low-rank adaptation of any model with linear layers."""

import builtins
import functools

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from informin.models.lora import linear_layers
from informin.models.st_module import TRAINED_FILE
from informin.publishing.export import export_checkpoint
from tests.conftest import make_sentences, raises_usage
from tests.models.any_encoder.helpers import changed, interrupted, read, sentence_transformer, weights

pytest.importorskip("peft", reason="the extra lora is not installed")
TEXTS = ["the dog", *make_sentences(9)]
WITH_LAYERS = ("qwen3", "gemma", "labse", "t5")


@pytest.fixture
def train(train):
    return functools.partial(train, lora_r=4, view="crop")


@pytest.mark.parametrize("name", WITH_LAYERS)
def test_only_the_matrices_are_trained_and_merging_keeps_embeddings(train, family, name, tmp_path):
    """Dense modules are trained, too. Exported as a complete model and as an adapter, with equal embeddings."""
    run = train(name)
    source = SentenceTransformer(str(family(name)), device="cpu")
    np.testing.assert_allclose(run.encode(TEXTS), source.encode(TEXTS), atol=1e-6)  # an update of 0
    before = weights(run.model)
    run.train()
    moved = changed(before, weights(run.model))
    assert moved and all("lora_" in weight or ".linear." in weight for weight in moved)
    assert any("lora_B" in weight for weight in moved)
    trained, state = run.encode(TEXTS), weights(run.model)
    run.export(tmp_path / "merged")
    assert not changed(state, weights(run.model)), "an export must not change the model"
    np.testing.assert_allclose(run.encode(TEXTS), trained, atol=1e-6)
    merged = SentenceTransformer(str(tmp_path / "merged"), device="cpu")
    np.testing.assert_allclose(merged.encode(TEXTS), trained, atol=2e-6)
    assert merged.state_dict().keys() == source.state_dict().keys()
    assert np.abs(trained - source.encode(TEXTS)).max() > 1e-3
    if name in ("qwen3",):  # without Dense modules, which are trained
        np.testing.assert_allclose(run.trained.original(run.args)(TEXTS), source.encode(TEXTS), atol=1e-6)


def test_adapter_export_names_its_source(train, family, tmp_path):
    run = train("qwen3", lora_merge=False)
    run.train()
    run.export(tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    assert read(tmp_path / "adapter", "adapter_config.json")["base_model_name_or_path"] == str(family("qwen3"))
    again = SentenceTransformer(str(tmp_path / "adapter"), device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS), run.encode(TEXTS), atol=2e-6)


@pytest.mark.parametrize("name", WITH_LAYERS)
def test_resumed_run_has_the_same_weights(train, name, tmp_path):
    whole, again = interrupted(train, name, tmp_path, lora_dropout=0.2)
    assert not changed(weights(whole.model), weights(again.model))
    with raises_usage(found="low-rank matrices without the weights"):
        export_checkpoint(tmp_path / "again" / "checkpoint-4", tmp_path / "export")
    assert (tmp_path / "again" / "checkpoint-4" / TRAINED_FILE).stat().st_size < 200_000


def test_dropout_of_the_matrices_makes_views_differ(train):
    """A decoder has no dropout of its own."""
    run = train("qwen3", view="dropout", lora_dropout=0.1)
    run.train()
    with raises_usage(option="view", found="has no dropout"):
        train("qwen3", view="dropout", lora_dropout=0.0)


def test_native_encoder_is_trained_as_a_sentence_transformer(train, bert, tmp_path):
    run = train(sentence_transformer(bert, tmp_path / "model"), gradient_checkpointing=True)
    assert run.args.backend == "st"
    run.train()
    assert np.isfinite(run.state.log_history[0]["loss"])


def test_chosen_layers(train, tmp_path):
    run = train("qwen3", lora_target_modules=["q_proj", "v_proj"])
    adapted = {name.split(".")[-4] for name, _ in run.model.named_parameters() if "lora_A" in name}
    assert adapted == {"q_proj", "v_proj"}
    assert {"k_proj", "gate_proj", "down_proj"} < set(linear_layers(run.model.st[0].auto_model))
    with raises_usage(option="lora_target_modules", found="is query", needed="q_proj"):
        train("qwen3", lora_target_modules=["query"])


@pytest.mark.parametrize(
    "options, option",
    [
        (dict(lora_r=0), "lora_r"),
        (dict(lora_alpha=0.0), "lora_alpha"),
        (dict(lora_dropout=1.0), "lora_dropout"),
        (dict(backend="native"), "backend"),
        (dict(lora_r=None, lora_alpha=8.0), "lora_alpha"),
        (dict(lora_r=None, lora_merge=False), "lora_merge"),
    ],
)
def test_invalid_options(train, options, option):
    with raises_usage(option=option):
        train("qwen3", **options)


@pytest.mark.parametrize("name", ["static", "remote"])
def test_models_without_linear_layers_are_refused(train, name):
    with raises_usage(option="lora_r", found="no linear layers"):
        train(name, trust_remote_code=name == "remote")


def test_missing_package_is_named(train, monkeypatch):
    own = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "peft":
            raise ImportError(name)
        return own(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with raises_usage(option="lora_r", found="peft", fix="the extra `lora`"):
        train("qwen3")
