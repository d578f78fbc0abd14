"""Runs from the command line for each objective: output, checkpoints, resume and export."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel

import run_unsup
from informin.cli import export as export_command
from informin.models.checkpoint import Checkpoint
from informin.models.native_loading import load_config
from informin.models.open_model import load_model
from informin.views.attention import ViewDropout
from tests.objectives.conftest import rows
from tests.objectives.family_helpers import SCD_ROWS

RUNS = {"scd": dict(projector_size=16), "micse": dict(queue_size=40, warmup_steps=0)}
OPTIONS = {  # options in the record
    "scd": dict(
        **dict(objective="scd", projection_head="none", self_contrast_weight=1.0),
        **dict(self_contrast_form="paper", projector_size=16),
    ),
    "micse": dict(
        **dict(
            objective="micse",
            projection_head="mlp",
            temperature=0.05,
            attention_mi_weight=2.5e-3,
            attention_mi_form="paper",
        ),
        **dict(queue_size=40, momentum_decay=0.995, momentum_dropout=0.3),
    ),
}
NOT_THE_OBJECTIVES = {
    *("max_seq_length", "sentences_per_step", "learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay"),
    *("max_grad_norm", "optim", "adam_beta1", "adam_beta2", "adam_epsilon", "gradient_accumulation_steps"),
    *("precision", "processes", "cpu_parts", "max_steps"),
}
TERMS = {"scd": ["self_contrast", "decorrelation"], "micse": ["contrast", "attention_mi"]}


@pytest.fixture(scope="module")
def runs():
    return {}


@pytest.fixture(params=["scd", "micse"])
def run(request, runs, encoder, command, capsys, tmp_path_factory):
    """Return the objective, folder, command line and output of a run of four steps, done once per objective."""
    key = (request.param, encoder)
    if key not in runs:
        folder = tmp_path_factory.mktemp("runs") / "run"
        options = dict(model_name=encoder, output_dir=folder, objective=request.param, **RUNS[request.param])
        arguments = command(save_total_limit=4, **options)
        assert run_unsup.main(arguments) == 0
        runs[key] = (request.param, folder, arguments, capsys.readouterr().out)
    return runs[key]


def read_json(path: Path):
    return json.loads(path.read_text())


def test_run_prints_its_terms_and_records_its_options(run, encoder):
    objective, folder, _, out = run
    (line,) = [line for line in out.splitlines() if line.startswith("last terms, unweighted")]
    terms = line.removeprefix("last terms, unweighted").replace(";", ",").split(",")
    listed = [term.split()[0] for term in terms]
    assert listed == [*TERMS[objective], "loss"]
    options = {k: v for k, v in read_json(folder / "training.json")["options"].items() if k not in NOT_THE_OBJECTIVES}
    row = SCD_ROWS[load_config(Checkpoint(encoder)).model_type] if objective == "scd" else {}
    assert options == OPTIONS[objective] | row
    settings = read_json(folder / "config.json")["informin"]
    assert settings["objective"] == objective and settings["pooling"] == "cls"


def test_checkpoint_has_everything_that_training_needs(run):
    objective, folder, _, _ = run
    weights = load_file(folder / "checkpoint-4" / "model.safetensors")
    settings = read_json(folder / "checkpoint-4" / "config.json")["informin"]
    heads = {".".join(name.split(".")[: 3 if name.startswith("heads.") else 1]) for name in weights}
    queue = {"mlp", "heads.queue.encoder", "heads.queue.embeddings", "heads.queue.ids"}
    assert heads - {"bert", "roberta"} == {"scd": {"heads.decorrelation.layers"}, "micse": queue}[objective]
    sizes = {name: settings[name] for name in ("projector_size", "queue_size") if name in settings}
    assert sizes == {"scd": {"projector_size": 16}, "micse": {"queue_size": 40}}[objective]
    if objective == "micse":
        assert weights["heads.queue.embeddings"].any(-1).all(), "64 keys for 40 places"


def test_resumed_run_equals_an_uninterrupted_one(run, tmp_path):
    """The checkpoints are bit-equal: weights, momentum encoder, queue and batch statistics."""
    _, folder, arguments, _ = run
    (tmp_path / "run").mkdir()
    shutil.copytree(folder / "checkpoint-2", tmp_path / "run" / "checkpoint-2")
    arguments = [a for a in arguments if not a.startswith("--output_dir")]
    assert run_unsup.main([*arguments, f"--output_dir={tmp_path / 'run'}", "--resume_from_checkpoint"]) == 0
    through, resumed, half = (
        load_file(path / "model.safetensors")
        for path in (folder / "checkpoint-4", tmp_path / "run" / "checkpoint-4", folder / "checkpoint-2")
    )
    assert through.keys() == resumed.keys()
    assert [name for name in through if not torch.equal(through[name], resumed[name])] == []
    assert [name for name in through if name.startswith("heads.")]
    still = [name for name in through if torch.equal(through[name], half[name])]
    assert still == []


@pytest.mark.parametrize("how", ["run", "informin export"])
def test_export_has_the_encoder_and_the_projection_head(run, tmp_path, capsys, how):
    objective, folder, _, _ = run
    kept = folder / f"checkpoint-{read_json(folder / 'training.json')['kept_step']}"
    checksums = {load_model(str(path), ("cls",), device="cpu").weights_sha256() for path in (kept, folder)}
    assert len(checksums) == 1, "results of the checkpoint are results of the export"
    if how == "informin export":
        assert export_command.main([str(kept), str(tmp_path / "export")]) == 0
        assert (tmp_path / "export" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
        folder = tmp_path / "export"
    plain = AutoModel.from_config(AutoConfig.from_pretrained(folder), add_pooling_layer=False)
    assert load_file(folder / "model.safetensors").keys() == plain.state_dict().keys()
    assert read_json(folder / "config.json")["informin"]["lm_head"] is False
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*.safetensors")}
    files = {name for name in files if not name.startswith("checkpoint-")}
    heads = {"projection_head/model.safetensors"} if objective == "micse" else set()
    assert files == {"model.safetensors"} | heads
    assert (folder / "projection_head").exists() == bool(heads)
    for name in heads:
        assert load_file(folder / name).keys() == {"dense.weight", "dense.bias"}


def test_export_gives_the_embeddings_of_its_checkpoint(run, encoder):
    _, folder, _, _ = run
    kept = folder / f"checkpoint-{read_json(folder / 'training.json')['kept_step']}"
    batch = rows(encoder)
    exported = AutoModel.from_pretrained(folder, add_pooling_layer=False)
    trained = load_file(kept / "model.safetensors")
    for name, value in exported.state_dict().items():
        assert torch.equal(trained[f"{exported.base_model_prefix}.{name}"], value), name
    ours = AutoModel.from_pretrained(folder, trust_remote_code=True)
    assert torch.equal(ours(**batch).pooler_output, exported(**batch).last_hidden_state[:, 0])
    assert ours.config._attn_implementation == "sdpa" and not ours.heads
    assert not any(isinstance(module, ViewDropout) for module in ours.modules())
