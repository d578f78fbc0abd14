"""Encoders and options that are not supported."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from torch import nn
from transformers import AutoConfig, AutoModel

import modeling_informin
import run_unsup
from informin.cli import export as export_command
from informin.models.checkpoint import Checkpoint
from informin.models.native_loading import load_saved, load_trainable
from informin.models.open_model import in_memory, load_model
from informin.publishing.export import export_folder
from informin.training.options import InforMinTrainingArguments
from tests.conftest import FOUR_STEPS, WORDS, make_sentences, raises_usage, save_encoder, tokenizer_of
from tests.models.any_encoder.helpers import (
    OBJECTIVES,
    PLAIN,
    SENTENCES,
    by_sentence_transformers,
    change,
    sentence_transformer,
)
from trainer_informin import InforMinTrainer


def dense(bert: Path, folder: Path) -> Path:
    from sentence_transformers import models

    return sentence_transformer(bert, folder, models.Dense(32, 16))


UNKNOWN = {
    "dense": (dense, "modules.json lists Transformer, Pooling, Dense, Normalize, not all of which are supported"),
    "max": (
        lambda b, to: sentence_transformer(b, to, pooling_mode="max"),
        "its pooling is max, which is not supported",
    ),
    "weighted": (
        lambda b, to: sentence_transformer(b, to, pooling_mode="weightedmean"),
        "its pooling is weightedmean, which is not supported",
    ),
    "without-prompt": (
        lambda b, to: sentence_transformer(b, to, include_prompt=False),
        "its pooling leaves out the prompt, which is not supported",
    ),
    "logits": (
        lambda b, to: change(sentence_transformer(b, to), "sentence_bert_config.json", transformer_task="fill-mask"),
        "sentence_bert_config.json has transformer_task, which is not supported",
    ),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_unsupported_modules_require_another_backend_or_pooler(bert, command, trainer, tmp_path, capsys, kind):
    """The native backend refuses them. With an explicit pooler, it leaves them out."""
    build, problem = UNKNOWN[kind]
    start = build(bert, tmp_path / "start")
    assert run_unsup.main(command(model_name=start, backend="native")) == 2
    error = capsys.readouterr().err
    assert "error: --pooler is auto" in error and problem in error and not (tmp_path / "run").exists()
    if kind != "logits":  # the default: as a SentenceTransformer
        assert trainer(start, tmp_path / "general").args.backend == "st"
    run = trainer(start, pooler="mean")
    run.export(tmp_path / "export")
    np.testing.assert_allclose(by_sentence_transformers(tmp_path / "export"), run.encode(SENTENCES), atol=1e-5)


def tiny(name: str, folder: Path, **values) -> Path:
    """Save an encoder that `save_encoder` does not support, with BERT's tokenizer."""
    save_encoder("bert", folder)
    config = AutoConfig.for_model(name, vocab_size=5 + len(WORDS), pad_token_id=0, **values)
    AutoModel.from_config(config).save_pretrained(folder)
    return folder


SIZES = dict(
    hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, max_position_embeddings=64
)
WRONG = {
    "decoder": ("gpt2", dict(n_embd=32, n_layer=1, n_head=4, n_positions=64), "'gpt2'"),
    "dropout-of-its-own": (
        "xlm",
        dict(emb_dim=32, n_layers=1, n_heads=4),
        "'xlm' cannot be trained here: it has no dropout rate that",
    ),
    "no-mask": (
        "fnet",
        SIZES,
        "'fnet' cannot be trained here: it does not accept input_ids and attention_mask",
    ),
    "sees-padding": (
        "nystromformer",
        SIZES,
        "'nystromformer' cannot be trained here: its output depends on the padding",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_untrainable_encoders_are_refused(trainer, tmp_path, kind):
    name, sizes, found = WRONG[kind]
    option = "model_name" if kind == "decoder" else None
    with raises_usage(option=option, found=found, needed="an encoder"):
        trainer(tiny(name, tmp_path / "start", **sizes))


def test_encoder_without_dropout_is_refused(folder_of, trainer):
    with raises_usage(found="Every dropout rate of this model is 0", fix="Set `view_dropout_rate`, for example to 0.1"):
        trainer("modernbert", view_dropout_rate=None)


@pytest.mark.parametrize(
    ("options", "option", "fields"),
    [
        (
            dict(view_dropout=[0.1, 0.2], view_dropout_rate=0.1),
            "view_dropout",
            dict(found="is given together with `view_dropout_rate`"),
        ),
        (dict(view_dropout_rate=0.0), "view_dropout_rate", dict(found="is 0.0", needed="above 0 and below 1")),
        (dict(view_dropout_rate=1.0), "view_dropout_rate", dict(found="is 1.0", needed="above 0 and below 1")),
        (dict(pooler="max"), "pooler", dict(found="is max", needed="one of: auto, cls, mean, last")),
        (
            dict(prompt="the old dog sees", max_seq_length=6),
            "prompt",
            dict(found="has 4 tokens", fix="set `max_seq_length` to 7 or more"),
        ),
    ],
    ids=["two-dropouts", "rate-0", "rate-1", "pooler", "prompt"],
)
def test_invalid_options_are_refused(trainer, options, option, fields):
    with raises_usage(option=option, **fields):
        trainer("bert", **options)


def test_longest_prompt_that_fits(trainer):
    assert {
        len(row) for row in trainer("bert", prompt="the old dog sees", max_seq_length=7).train_dataset["input_ids"]
    } == {7}


def test_prompt_without_room_for_a_sentence_is_an_error(bert):
    with raises_usage(option="prompt", found="has 3 tokens", fix="set `max_length` to 6 or more"):
        load_model(str(bert), ("mean",), length=5, prompt="the old dog")


def test_view_dropout_rate_replaces_rates_per_view(trainer):
    """The paper has one rate per view, which this encoder does not support."""
    run = trainer("mpnet", view_dropout_rate=0.2, **OBJECTIVES["scd"])
    assert run.args.view_dropout is None
    rates = {module.p for module in run.model.base_model.modules() if isinstance(module, nn.Dropout)}
    assert rates == {0.2}


def test_model_built_with_another_rate_is_refused(bert, trainer, tmp_path):
    args = InforMinTrainingArguments(str(tmp_path / "run"), **FOUR_STEPS, view_dropout_rate=0.2, eval_strategy="no")
    model = load_trainable(Checkpoint(bert), args.model_settings)
    InforMinTrainer(model, args, make_sentences(32), processing_class=tokenizer_of(bert))
    args = InforMinTrainingArguments(str(tmp_path / "run"), **FOUR_STEPS, eval_strategy="no")
    with raises_usage(option="view_dropout_rate", found="is None, and the model was built with 0.2"):
        InforMinTrainer(model, args, make_sentences(32), processing_class=tokenizer_of(bert))


def test_loaded_model_keeps_its_settings(bert, tmp_path):
    """The trainer keeps pooling, prompt and normalization that `load_trainable` found."""
    start = sentence_transformer(bert, tmp_path / "start")
    args = InforMinTrainingArguments(str(tmp_path / "run"), **FOUR_STEPS, eval_strategy="no")
    model = load_trainable(Checkpoint(start), args.model_settings)
    run = InforMinTrainer(model, args, make_sentences(32), processing_class=tokenizer_of(start))
    assert (run.args.pooler, run.args.prompt) == ("mean", "the old ") and model.config.informin["normalize"] is True
    np.testing.assert_allclose(run.encode(SENTENCES), load_model(str(start))(SENTENCES)["mean"], atol=1e-5)


def test_onnx_export_of_an_untested_architecture_is_refused(trainer, tmp_path, capsys):
    trainer("albert").export(tmp_path / "export")
    assert export_command.main([str(tmp_path / "export"), str(tmp_path / "again"), "--onnx"]) == 2
    assert "The architecture 'albert' cannot be exported to ONNX; expected one of: bert, rob" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


def test_invalid_prompts_are_refused(bert, tmp_path):
    start = sentence_transformer(bert, tmp_path / "start")
    name = "config_sentence_transformers.json"
    for number, (values, message) in enumerate(
        (
            (dict(default_prompt_name="x"), f"default_prompt_name in {name} is 'x'"),
            (dict(default_prompt_name=["query"]), f"default_prompt_name in {name} is ['query']"),
            (dict(prompts=["x"]), f"prompts in {name} is ['x']"),
        )
    ):
        with raises_usage(option="model_name", found=message):
            load_model(str(change(shutil.copytree(start, tmp_path / str(number)), name, **values)))


def test_damaged_or_missing_projection_head(folder_of, tmp_path):
    """A damaged file is an error. Without the file, the model has no head."""
    folder = folder_of("distilbert")
    model = load_trainable(Checkpoint(folder), PLAIN | {"projection_head": "mlp"})
    export_folder(in_memory(model, tokenizer_of(folder)), tmp_path / "export")
    head = tmp_path / "export" / modeling_informin.HEAD_FILE
    head.write_bytes(head.read_bytes()[:50])
    with raises_usage(option="model_name", found="cannot be loaded: "):
        load_model(str(tmp_path / "export"))
    head.unlink()
    saved = load_saved(Checkpoint(tmp_path / "export"))
    assert saved.config.informin["projection_head"] == "none"
