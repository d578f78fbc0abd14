"""Before the first step, everything that training saves is written once, without weights."""

import json
import random
import shutil

import numpy as np
import pytest
import torch

import run_unsup
from informin.errors import UsageError
from trainer_informin import InforMinTrainer, InforMinTrainingArguments


@pytest.fixture
def trainer(bert, sentences_file, tmp_path):
    options = dict(max_steps=2, per_device_train_batch_size=16, eval_strategy="no", use_cpu=True, bf16=False)
    args = InforMinTrainingArguments(str(tmp_path / "run"), report_to=[], **options)
    return InforMinTrainer(str(bert), args, sentences_file.read_text().splitlines())


def test_model_that_cannot_be_saved_is_not_trained(trainer, monkeypatch):
    steps = []
    monkeypatch.setattr(InforMinTrainer, "training_step", lambda *_: steps.append(1))
    trainer.model.config.layer_norm_eps = float("nan")
    trainer.model.config.output_attentions = None
    trainer.model.config._output_attentions = True
    with pytest.raises(UsageError) as error:
        trainer.train()
    assert "could not be saved" in str(error.value) and "output_a" in str(error.value)
    assert steps == []


@pytest.mark.parametrize("file", ["tokenizer", "record", "export"])
def test_dry_run_covers_every_file(trainer, monkeypatch, file):
    """The tokenizer, training.json, or the files of sentence-transformers cannot be written."""
    if file == "tokenizer":
        monkeypatch.setattr(type(trainer.processing_class), "save_pretrained", lambda *_, **__: 1 / 0)
    elif file == "record":
        trainer.known["language"] = float("nan")
    else:
        trainer.model.config.informin["sentence_transformers"] = {"similarity_fn_name": float("nan")}
    with pytest.raises(UsageError) as error:
        trainer.train()
    assert "could not be saved" in str(error.value)
    assert trainer.state.global_step == 0


def test_dry_run_leaves_no_files_and_changes_nothing(trainer, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    config, weights = trainer.model.config.to_dict(), {k: v.clone() for k, v in trainer.model.state_dict().items()}
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    trainer.model.train()
    trainer._try_to_save()
    assert trainer.model.training
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())
    named = {"architectures", "auto_map"}  # set by every save
    assert {name for name, value in trainer.model.config.to_dict().items() if config.get(name) != value} <= named
    assert all(torch.equal(weights[name], x) for name, x in trainer.model.state_dict().items())
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize("value", [float("nan"), "cosin", 3])
def test_unknown_similarity_function(bert, command, tmp_path, capsys, value):
    model = shutil.copytree(bert, tmp_path / "model")
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in MODULES.items()]
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    (model / "config_sentence_transformers.json").write_text(json.dumps({"similarity_fn_name": value}))
    assert run_unsup.main(command(model_name=model)) == 2
    message = f"similarity_fn_name in config_sentence_transformers.json is {value!r}; expected one of: cosine, dot, "
    assert f"error: --model_name {model}: {message}" in capsys.readouterr().err


MODULES = {"Transformer": "", "Pooling": "1_Pooling"}
