"""Models that do not fit or lack weights are refused by every command."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from informin.errors import UsageError
from informin.models.checkpoint import Checkpoint
from informin.models.native_checks import refuse_without_dropout
from informin.models.native_loading import load_config, load_saved, load_tokenizer, load_trainable
from informin.models.open_model import load_model
from informin.publishing.export import export_checkpoint
from modeling_informin import HEAD_FILE
from tests.conftest import SHARED, raises_usage, tokenizer_of
from tests.models.encoder_helpers import SETTINGS
from tests.models.loading_helpers import config, printed, refusal

TOGETHER = "the tokenizer does not belong to the model"


pytestmark = pytest.mark.usefixtures("small_senteval")


@pytest.mark.parametrize("start", ["tiny-bert", "tiny-roberta"])
def test_decoder_is_refused(exported, tmp_path, commands, capsys, start):
    model = shutil.copytree(exported[start], tmp_path / "decoder")
    config(is_decoder=True)(model)
    message = (
        f"`model_name` {model} is a decoder: its [CLS] token cannot attend to the tokens after it; expected an encoder "
        "like BERT. If it was trained as an encoder, set is_decoder to false in config.json."
    )
    for name, call in commands.items():
        assert refusal(capsys, call, model) == printed(name, message)


def test_roberta_with_tokenizer_of_bert_is_refused(exported, tmp_path, commands, capsys):
    """Positions start after the padding index, so every position would be wrong."""
    model = shutil.copytree(exported["tiny-roberta"], tmp_path / "crossed")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(exported["tiny-bert"] / name, model)
    message = (
        f"`model_name` {model}: {TOGETHER}: its padding token [PAD] has the id 0, and pad_token_id in config.json is "
        "1. Copy tokenizer.json and tokenizer_config.json from the checkpoint that the model was trained from."
    )
    for name, call in commands.items():
        assert refusal(capsys, call, model) == printed(name, message)


@pytest.mark.parametrize("pad", [0, 2, -1, None])
def test_padding_index_must_match_the_tokenizer(roberta, tmp_path, pad):
    model = shutil.copytree(roberta, tmp_path / "model")
    config(pad_token_id=pad)(model)
    with raises_usage(option="model_name", found=f"has the id 1, and pad_token_id in config.json is {pad}"):
        tokenizer_of(model)


@pytest.mark.parametrize("pad", [None, 3])
def test_bert_accepts_any_padding_index(bert, tmp_path, pad):
    """Padding does not affect BERT."""
    model = shutil.copytree(bert, tmp_path / "model")
    config(pad_token_id=pad)(model)
    assert tokenizer_of(model).pad_token_id == 0


def test_special_tokens_outside_of_the_vocabulary(model):
    """The number of tokens matches the model, but one id is too large."""
    path = model / "tokenizer.json"
    words = json.loads(path.read_text())
    words["model"]["vocab"]["[MASK]"] = 99
    for token in words["added_tokens"]:
        token["id"] = 99 if token["content"] == "[MASK]" else token["id"]
    path.write_text(json.dumps(words))
    found = f"{model}: {TOGETHER}: its token [MASK] has the id 99, and the model has 34 tokens"
    with raises_usage(option="model_name", found=found, fix="Copy tokenizer.json"):
        load_tokenizer(Checkpoint(model))


REAL = sorted((SHARED / "models").glob("*/config.json"))


@pytest.mark.skipif(not REAL, reason="real models: ../shared/models is not here")
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.parent.name)
def test_real_models_are_not_refused(path):
    assert load_model(str(path.parent), ("cls",)).length == 512


def without(folder: Path, *prefixes: str) -> Path:
    """Remove the weights with these prefixes."""
    path = folder / "model.safetensors"
    weights = {name: tensor for name, tensor in load_file(path).items() if not name.startswith(prefixes)}
    assert len(weights) < len(load_file(path))
    save_file(weights, path, metadata={"format": "pt"})
    return folder


def train(folder: Path, **settings):
    return load_trainable(Checkpoint(folder), SETTINGS | settings)


def saved(folder: Path):
    return load_saved(Checkpoint(folder))


def test_missing_encoder_weights_are_an_error(encoder, tmp_path):
    """In training and elsewhere. If the language-model head is missing too, the error names the encoder."""
    prefix = load_config(Checkpoint(encoder)).model_type
    folder = shutil.copytree(encoder, tmp_path / "model")
    without(folder, f"{prefix}.encoder.layer.1.output.dense.", "cls.", "lm_head.")
    for load, names in ((train, f"{prefix}."), (saved, "")):
        found = f"{folder} lacks 2 weights of the encoder, such as {names}encoder.layer.1.output.dense.bias"
        with raises_usage(option="model_name", found=found, fix="Copy the model again from its source."):
            load(folder)
    with raises_usage(option="model_name", found=" weights of the encoder, such as"):
        train(folder, lm_head=True)


def test_missing_language_model_head_is_an_error(encoder, tmp_path):
    folder = shutil.copytree(encoder, tmp_path / "model")
    without(folder, "cls.predictions.transform.", "lm_head.dense.")
    train(folder)
    with raises_usage(option="model_name", found=f"{folder} has no language-model head", fix="set `mlm_weight` to 0"):
        train(folder, lm_head=True)


def test_projection_head_is_initialized_only_in_training(encoder, tmp_path):
    """The class of a checkpoint hides the missing head from transformers' report."""
    model = train(encoder)
    weights = {name: tensor.clone() for name, tensor in model.mlp.state_dict().items()}
    checkpoint = tmp_path / "checkpoint"
    model.save_pretrained(checkpoint)
    tokenizer_of(encoder).save_pretrained(checkpoint)
    for load in (train, saved):
        for name, tensor in load(checkpoint).mlp.state_dict().items():
            assert torch.equal(tensor, weights[name])
    without(checkpoint, "mlp.")
    assert not torch.equal(train(checkpoint).mlp.dense.weight, weights["dense.weight"])
    for load in (saved, lambda folder: export_checkpoint(folder, tmp_path / "export")):
        with raises_usage(option="model_name", found="lacks 2 weights of the encoder, such as mlp.dense.bias"):
            load(checkpoint)


def test_export_saved_by_another_class_loses_its_head(exported, tmp_path):
    """Its settings name a lost projection head. A random head is not published instead."""
    again, folder = tmp_path / "again", tmp_path / "export"
    transformers.AutoModel.from_pretrained(exported["tiny-bert"]).save_pretrained(again)
    tokenizer_of(exported["tiny-bert"]).save_pretrained(again)
    export_checkpoint(again, folder)
    assert json.loads((folder / "config.json").read_text())["informin"]["projection_head"] == "none"
    assert not (folder / HEAD_FILE).exists()
    expected = load_file(exported["tiny-bert"] / "model.safetensors")
    weights = load_file(folder / "model.safetensors")
    assert weights.keys() == expected.keys() and all(torch.equal(weights[name], expected[name]) for name in weights)


def test_model_without_position_embeddings_is_refused(tmp_path):
    transformers.FunnelConfig().save_pretrained(tmp_path)
    found = f"{tmp_path} is a funnel model, which has no position embeddings"
    with raises_usage(option="model_name", found=found, needed="an encoder like BERT"):
        load_model(str(tmp_path), ("cls",))


def test_without_dropout(encoder, tmp_path):
    """One rate above 0 is enough."""
    model = shutil.copytree(encoder, tmp_path / "model")
    for hidden, attention in ((0.1, 0.0), (0.0, 0.1), (0.0, 0.0)):
        config(hidden_dropout_prob=hidden, attention_probs_dropout_prob=attention)(model)
        still = hidden == attention == 0.0
        with pytest.raises(UsageError) if still else nullcontext() as caught:
            refuse_without_dropout(train(model).base_model)
    assert str(caught.value) == (
        "Every dropout rate of this model is 0, so the two views of a sentence would be identical. Set "
        "`view_dropout_rate`, for example to 0.1, `view_dropout`, or hidden_dropout_prob and "
        "attention_probs_dropout_prob in config.json."
    )
