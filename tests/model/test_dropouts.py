"""Of the rates that a checkpoint stores, only the encoder's two dropout rates are read, wherever a model is opened."""

import json

import pytest
import torch

from informin.model.checksums import settings_sha256
from informin.model.open import DROPOUTS, load_model, own_dropouts
from informin.training.arguments import InforMinTrainingArguments
from informin.training.model import TrainedModel
from tests.conftest import FOUR_STEPS, make_sentences, raises_usage, save_sentence_transformer
from trainer_informin import InforMinTrainer

HARMLESS = {  # attributes of a configuration that change embeddings or how they are computed
    "layer_norm_eps": 0.5,
    "hidden_act": "relu",
    "output_attentions": True,
    "_attn_implementation": "eager",
    "attn_implementation": "eager",
    "note": "a stranger was here",
}


@pytest.fixture
def folder(tmp_path, encoder):
    """A model whose config.json stores attributes that are not dropout rates, beside one that is."""
    folder = save_sentence_transformer(tmp_path / "model", encoder, pooling="cls", normalize=False)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["informin"] = {"pooling": "cls", "dropouts": {**HARMLESS, "hidden_dropout_prob": 0.25}}
    path.write_text(json.dumps(config))
    return folder


def differences(config, folder) -> set[str]:
    """Return which harmless attributes differ between a configuration and the values of config.json itself."""
    stored = json.loads((folder / "config.json").read_text())
    now = {name: getattr(config, name, None) for name in ("layer_norm_eps", "hidden_act", "note")}
    return {name for name, value in now.items() if value != stored.get(name)}


def test_training_reads_the_two_rates_alone(folder, tmp_path):
    options = FOUR_STEPS | dict(objective="simcse", eval_strategy="no", save_strategy="no", measure_drift=False)
    trainer = InforMinTrainer(
        str(folder), InforMinTrainingArguments(str(tmp_path / "run"), **options), train_dataset=SENTENCES
    )
    config = trainer.model.config
    assert differences(config, folder) == set() and not config.output_attentions
    assert config._attn_implementation == "sdpa"
    assert config.hidden_dropout_prob == 0.25
    trainer.export(report=False)
    exported = json.loads((tmp_path / "run" / "config.json").read_text())
    assert "note" not in exported and exported["layer_norm_eps"] != 0.5 and exported["hidden_act"] == "gelu"
    assert exported["hidden_dropout_prob"] == 0.25


SENTENCES = make_sentences(96)


def test_reading_a_model_ignores_the_entry(folder, tmp_path, encoder):
    plain = save_sentence_transformer(tmp_path / "plain", encoder, pooling="cls", normalize=False)
    opened = load_model(folder)
    assert differences(opened[0].config, folder) == set()
    assert torch.equal(*(torch.as_tensor(load_model(one).encode(SENTENCES[:5])) for one in (folder, plain)))


def test_a_checksum_ignores_other_attributes(folder):
    before = settings_sha256(load_model(folder))
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["informin"]["dropouts"].pop("layer_norm_eps")
    path.write_text(json.dumps(config))
    assert settings_sha256(load_model(folder)) == before


@pytest.mark.parametrize("name", DROPOUTS)
@pytest.mark.parametrize("rate", ["0.1", None, True, [0.1], -0.1, 1.5, float("nan"), float("inf")])
def test_a_rate_is_a_number_from_0_to_1(name, rate):
    with raises_usage(option="model_name"):
        own_dropouts({"dropouts": {name: rate}})


@pytest.mark.parametrize("settings", [None, {}, [], "text", {"dropouts": None}, {"dropouts": [0.1]}])
def test_without_stored_rates_there_are_none(settings):
    assert own_dropouts(settings) == {}


def test_a_training_that_starts_from_a_bad_rate_is_refused(folder):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["informin"]["dropouts"]["hidden_dropout_prob"] = "much"
    path.write_text(json.dumps(config))
    with raises_usage(option="model_name"):
        TrainedModel.open(str(folder), InforMinTrainingArguments("unused", objective="simcse"))
