"""Hostile and wrong values in config.json are refused by name before they are used."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

import run_unsup
from informin.errors import UsageError
from informin.models.checkpoint import Checkpoint
from informin.models.native_loading import load_config, load_trainable
from informin.models.open_model import in_memory, load_model
from informin.objectives import OBJECTIVES
from informin.publishing.export import export_folder
from modeling_informin import BertForInforMinCL
from tests.conftest import raises_usage, tokenizer_of

SETTINGS = {"projection_head": "mlp", "lm_head": False, "pooling": "cls"}


@pytest.fixture(scope="module")
def exported(bert, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "model"
    export_folder(in_memory(load_trainable(Checkpoint(bert), dict(SETTINGS)), tokenizer_of(bert)), folder)
    return folder


@pytest.fixture
def model(exported, tmp_path) -> Path:
    return shutil.copytree(exported, tmp_path / "model")


def configure(folder: Path, **values) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return folder


KERNEL = {"_attn_implementation": "kernels-community/flash-attn"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dropouts": KERNEL}, "informin.dropouts._attn_implementation in config.json is not a known setting."),
        ({"dropouts": {"is_decoder": 1}}, "informin.dropouts.is_decoder in config.json is not a known setting."),
        ({"dropouts": {"classifier_dropout": 0.1}}, "classifier_dropout in config.json is not a known setting."),
        (
            {"dropouts": {"hidden_dropout_prob": "0.1"}},
            "informin.dropouts.hidden_dropout_prob in config.json is '0.1'; expected a number from 0 to 1.",
        ),
        ({"dropouts": {"hidden_dropout_prob": float("nan")}}, "hidden_dropout_prob in config.json is nan; expected"),
        ({"dropouts": {"hidden_dropout_prob": True}}, "hidden_dropout_prob in config.json is True; expected"),
        ({"dropouts": [1]}, "informin.dropouts in config.json is [1]; expected a dict."),
        (KERNEL, "informin._attn_implementation in config.json is not a known setting. Remove it, or use the"),
        ({"surprise": 1}, "informin.surprise in config.json is not a known setting."),
        ({"objective": "mine", "_surprise": 1}, "informin._surprise in config.json is not a known setting."),
        ({"objective": "mine", "surprise": {}}, "informin.surprise in config.json is {}; expected a number, a text"),
        ({"objective": "<b>"}, "informin.objective in config.json is '<b>'; expected a name."),
        ({"temperature": {"a": 1}}, "informin.temperature in config.json is {'a': 1}; expected a number, a text"),
        ({"pooling": "max"}, "informin.pooling in config.json is 'max'; expected one of: cls, mean, last."),
        ({"pooling": ["cls"]}, "informin.pooling in config.json is ['cls']; expected one of: cls, mean, last."),
        ({"projection_head": "big"}, "informin.projection_head in config.json is 'big'; expected one of: mlp, none."),
        ({"normalize": "no"}, "informin.normalize in config.json is 'no'; expected true or false."),
        ({"lm_head": 3}, "informin.lm_head in config.json is 3; expected true or false."),
        ({"prompt": 3}, "informin.prompt in config.json is 3; expected text."),
        ({"max_seq_length": "<script>"}, "max_seq_length in config.json is '<script>'; expected an integer of 1"),
        ({"max_seq_length": True}, "max_seq_length in config.json is True; expected an integer of 1 or more."),
        ({"view_dropout": [0.1, 2]}, "informin.view_dropout in config.json is [0.1, 2]; expected a list, each a num"),
        ({"sentence_transformers": {"a": 1}}, "informin.sentence_transformers.a in config.json is not a known"),
        (
            {"sentence_transformers": {"similarity_fn_name": float("nan")}},
            "informin.sentence_transformers.similarity_fn_name in config.json is nan; expected one of: cosine, dot,",
        ),
    ],
)
def test_invalid_settings_are_refused(model, settings, message):
    configure(model, informin=SETTINGS | settings)
    for load in (load_config, lambda files: load_config(files, any_encoder=True), load_model):
        with pytest.raises(UsageError) as caught:
            load(Checkpoint(model))
        assert message in str(caught.value) and "\n" not in str(caught.value)


def test_settings_written_by_this_project_are_accepted(model):
    configure(model, informin=SETTINGS | {"dropouts": {"hidden_dropout_prob": 0.2}})
    assert load_trainable(Checkpoint(model), dict(SETTINGS)).config.hidden_dropout_prob == 0.2
    for name in OBJECTIVES:  # and those of an objective that this program has not
        load_config(Checkpoint(configure(model, informin=SETTINGS | {"objective": name, "mlm_weight": 0.1})))
    load_config(
        Checkpoint(configure(model, informin=SETTINGS | {"objective": "mine", "my_weight": 0.1, "rows": [1, 2]}))
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_dropout_prob": float("nan")}, "hidden_dropout_prob in config.json is nan; expected a number from"),
        ({"attention_probs_dropout_prob": -0.1}, "attention_probs_dropout_prob in config.json is -0.1; expected a"),
        ({"layer_norm_eps": float("inf")}, "layer_norm_eps in config.json is inf; expected a finite number."),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config in config.json says that"),
    ],
)
def test_invalid_numbers_are_refused(model, command, capsys, values, message):
    configure(model, **values)
    assert run_unsup.main(command(model_name=model)) == 2
    assert f"error: --model_name {model}: {message}" in capsys.readouterr().err
    with raises_usage(option="model_name", found=message.partition(" in ")[0]):
        load_model(str(model))


def test_flags_that_change_model_output_have_no_effect(model, command, tmp_path):
    """Otherwise transformers refuses to save the trained model, or the model returns a tuple."""
    expected = load_model(str(model))(["the dog"])["cls"]
    configure(model, output_attentions=True, output_hidden_states=True, return_dict=False)
    assert (load_model(str(model))(["the dog"])["cls"] == expected).all()
    assert run_unsup.main(command(model_name=model)) == 0
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert not {"output_attentions", "output_hidden_states", "return_dict"} & {name for name in saved if saved[name]}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([1], "config.informin is a list; expected a dict."),
        ({"pooling": "max"}, "config.informin has pooling = 'max'; expected one of: cls, mean, last."),
        ({"projection_head": ["mlp"]}, r"config.informin has projection_head = \['mlp'\]; expected one of: mlp, none."),
        ({"lm_head": "x"}, "config.informin has lm_head = 'x'; expected one of: False, True."),
        ({"normalize": "x"}, "config.informin has normalize = 'x'; expected one of: False, True."),
    ],
)
def test_published_model_class_refuses_invalid_settings(model, tmp_path, monkeypatch, settings, message):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    configure(model, informin=settings)
    for load in (BertForInforMinCL.from_pretrained, lambda f: AutoModel.from_pretrained(f, trust_remote_code=True)):
        with pytest.raises(ValueError, match=f"^{message}$"):
            load(model)


def test_published_model_class_ignores_dropouts(model):
    configure(model, informin=SETTINGS | {"dropouts": KERNEL})
    assert BertForInforMinCL.from_pretrained(model, dtype=torch.float32).config._attn_implementation == "sdpa"


def test_own_code_is_logged(bert, model, tmp_path, caplog):
    """If the code is ignored, or if the weights need it. This project's own code is not logged."""
    caplog.set_level("INFO", logger="informin")
    load_model(str(model))
    assert caplog.messages == []
    ignored = configure(shutil.copytree(bert, tmp_path / "ignored"), auto_map={"AutoModel": "own.OwnBert"})
    load_model(str(ignored), ("cls",))
    assert caplog.messages == [
        f"{ignored} names its own code (own.OwnBert), which is not run. It is loaded as a bert model."
    ]
    weights = {name.replace("intermediate", "gated"): x for name, x in load_file(bert / "model.safetensors").items()}
    save_file(weights, ignored / "model.safetensors", {"format": "pt"})
    with raises_usage(option="model_name", found="needs its own code (own.OwnBert, in auto_map), which is never run"):
        load_model(str(ignored), ("cls",))


def test_only_unusual_unused_weights_are_logged(bert, tmp_path, caplog, capfd):
    """Not those of the language-model head, and never as a table."""
    caplog.set_level("INFO", logger="informin")
    model = shutil.copytree(bert, tmp_path / "more")
    load_model(str(model), ("cls",))
    assert caplog.messages == []
    weights = load_file(model / "model.safetensors") | {"classifier.weight": torch.zeros(2, 2)}
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    load_model(str(model), ("cls",))
    assert caplog.messages == [f"{model} has 1 weight that its encoder does not use, such as classifier.weight."]
    assert "LOAD REPORT" not in capfd.readouterr().err


def test_message_about_dense_names_the_dimensions(bert, tmp_path):
    model = shutil.copytree(bert, tmp_path / "dense")
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Dense": "2_Dense"}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in paths.items()]
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "2_Dense").mkdir()
    (model / "2_Dense" / "config.json").write_text(json.dumps({"in_features": 32, "out_features": 16}))
    found = "leaves out its Dense layer, and embeddings have 32 dimensions instead of 16"
    with raises_usage(option="pooler", found=found):
        load_model(str(model), backend="native")


@pytest.mark.parametrize("objective", [{"x": 1}, [None]])
def test_objective_must_be_a_name(model, objective):
    with raises_usage(option="model_name", found="informin.objective in config.json is"):
        load_config(Checkpoint(configure(model, informin=SETTINGS | {"objective": objective})))


@pytest.mark.parametrize("name, value", [("num_hidden_layers", 2**31), ("vocab_size", 0), ("layer_norm_eps", -0.5)])
def test_sizes_and_epsilons_have_limits(model, name, value):
    with raises_usage("model_name", found=f"{name} {value}", needed=name):
        load_config(Checkpoint(configure(model, **{name: value})))
