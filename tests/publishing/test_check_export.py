"""Damaged checkpoints and folders that are not exports are refused."""

import shutil
from pathlib import Path

import pytest
import torch

from informin.cli import export as export_command
from informin.publishing.published import check_export
from tests.conftest import raises_usage
from tests.publishing.export_helpers import change_weights, copy

NAN = torch.full([32], torch.nan)


def cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "does not exist"),
        (lambda folder: (folder / "config.json").unlink(), "cannot be loaded"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "gpt2"}'), "expected an encoder like"),
        (lambda folder: (folder / "model.safetensors").unlink(), "cannot be loaded"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "cannot be loaded"),
        (cut, "cannot be loaded"),
        (lambda folder: change_weights(folder, bert__embeddings__LayerNorm__bias=torch.zeros(7)), "cannot be loaded"),
        (lambda folder: change_weights(folder, bert__embeddings__LayerNorm__bias=None), "LayerNorm.bias"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer"),
        (lambda folder: (folder / "training.json").write_text("{"), "training.json is not JSON"),
        (lambda folder: (folder / "training.json").write_bytes(b"\xe4"), "training.json is not JSON"),
        (
            lambda folder: (folder / "training.json").write_text("[1]"),
            "training.json: it is a list; expected a mapping",
        ),
        (lambda folder: (folder / "training.json").write_text('{"schema": 3}'), "train again with this version"),
    ],
    ids=[
        *("no-folder", "no-config", "gpt2", "no-weights", "empty-weights", "cut-weights", "other-shape", "one-missing"),
        *("no-tokenizer", "record-cut", "record-no-text", "record-a-list", "record-of-another-schema"),
    ],
)
def test_damaged_checkpoint_is_refused(bert_run, tmp_path, capsys, damage, message):
    checkpoint = copy(bert_run.kept, tmp_path / "checkpoint-1")
    damage(checkpoint)
    assert export_command.main([str(checkpoint), str(tmp_path / "export")]) == 2
    error = capsys.readouterr().err
    error = error[error.index("error: ") :].strip()
    assert message in error and "\n" not in error
    assert [path.name for path in tmp_path.iterdir() if path != checkpoint] == []


def test_other_models_are_refused(bert, tmp_path, capsys):
    assert export_command.main([str(bert), str(tmp_path / "export")]) == 2
    assert f"{bert} is not an InforMin-CL model: its config.json has no `informin`" in capsys.readouterr().err
    assert not (tmp_path / "export").exists()


def test_check_export_names_the_command_that_repairs_a_checkpoint(bert_run, tmp_path, monkeypatch):
    with raises_usage(found="is a checkpoint, which cannot be published") as error:
        check_export(bert_run.kept)
    command = error.value.fix.partition("Export it first: ")[2]
    assert command == f"python -m informin export {bert_run.kept} NEW_FOLDER"
    monkeypatch.chdir(tmp_path)
    assert export_command.main(command.split()[4:]) == 0
    check_export("NEW_FOLDER")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "it has no model.safetensors"),
        (lambda folder: (folder / "modeling_informin.py").unlink(), "it has no modeling_informin.py"),
        (cut, "/run cannot be read: "),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "/run cannot be read: "),
        (lambda folder: cut(folder / "projection_head"), "/run cannot be read: "),
        (lambda folder: change_weights(folder, pooler__x=NAN), "run: NaN or infinity in 1 weight, such as pooler.x"),
        (lambda folder: change_weights(folder / "projection_head", dense__bias=NAN), "such as dense.bias"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "bert"}'), "is not an InforMin-CL model"),
        (lambda folder: shutil.rmtree(folder / "1_Pooling"), "/run has no 1_Pooling/config.json"),
        (lambda folder: [path.unlink() for path in folder.glob("tokenizer*")], "/run has no tokenizer.json"),
    ],
    ids=[
        *("no-weights", "no-code", "cut-weights", "empty-weights", "cut-head", "nan", "nan-in-head", "plain-bert"),
        *("no-pooling", "no-tokenizer"),
    ],
)
def test_check_export_refuses(bert_run, tmp_path, damage, message):
    folder = copy(bert_run.folder, tmp_path / "run")
    damage(folder)
    with raises_usage(found=message):
        check_export(folder)


def test_check_export_does_not_ask_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with raises_usage(found="model does not exist", needed="a folder that training or `informin export` wrote"):
        check_export("model")
