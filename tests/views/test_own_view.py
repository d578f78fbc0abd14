"""Training with each view, and with one from outside the package: options, resume, refusals. See own_view.py."""

import importlib
import json

import pytest
import torch
from safetensors.torch import load_file

import run_unsup
from informin.views import VIEWS
from tests.conftest import save_bert

OWN_OPTIONS = {
    "neighbor": dict(view_neighbors=3),
    "repetition": dict(repetition_rate=0.5),
    "crop": dict(crop_min_fraction=0.3),
    "deletion": dict(deletion_rate=0.4),
}


@pytest.fixture(autouse=True)
def own_view(logging_as_before):
    """As if a program had imported it; other tests see the package's views only."""
    yield importlib.reload(importlib.import_module("tests.own_view"))
    del VIEWS["deletion"]


@pytest.fixture
def run(command, tmp_path):
    """Run four steps of SimCSE and return the exit code."""
    common = dict(objective="simcse", load_best_model_at_end=False, measure_drift=False)
    return lambda folder, **options: run_unsup.main(command(output_dir=tmp_path / folder, **(common | options)))


@pytest.mark.parametrize("view", OWN_OPTIONS)
def test_resume_with_a_view_is_bit_exact(run, tmp_path, view):
    options = dict(view=view, mlm_weight=0.1, **OWN_OPTIONS[view])
    assert run("whole", **options) == 0
    (tmp_path / "halves").mkdir()
    (tmp_path / "whole/checkpoint-2").rename(tmp_path / "halves/checkpoint-2")
    assert run("halves", resume_from_checkpoint="last", **options) == 0
    whole, halves = (load_file(tmp_path / name / "checkpoint-4/model.safetensors") for name in ("whole", "halves"))
    assert [name for name in whole if not torch.equal(whole[name], halves[name])] == []
    recorded = json.loads((tmp_path / "whole/training.json").read_text(encoding="utf-8"))["options"]
    assert recorded.items() >= (dict(view=view) | OWN_OPTIONS[view]).items()
    settings = json.loads((tmp_path / "whole/checkpoint-4/config.json").read_text(encoding="utf-8"))
    assert settings["informin"].items() >= (dict(view=view) | OWN_OPTIONS[view]).items()


def test_views_train_different_weights(run, tmp_path):
    weights = {}
    for view in ("dropout", "repetition", "crop", "deletion"):
        assert run(view, view=view, max_steps=2) == 0
        weights[view] = load_file(tmp_path / view / "checkpoint-2/model.safetensors")["mlp.dense.weight"]
    for one in weights:
        assert [other for other in weights if torch.equal(weights[one], weights[other])] == [one]


@pytest.mark.parametrize("view", ["neighbor", "deletion"])
def test_attention_mutual_information_refuses_views_of_other_tokens(run, capsys, view):
    assert run("run", objective="micse", queue_size=8, view=view) == 2
    said = capsys.readouterr().err
    assert "--attention_mi_weight compares attention maps token by token" in said and f"--view {view}" in said


@pytest.mark.parametrize("view", ["repetition", "crop"])
def test_attention_mutual_information_of_shared_tokens_is_trained(run, tmp_path, view):
    weights = []
    for weight in (0, 5):
        options = dict(view=view, attention_mi_weight=weight, max_steps=2)
        assert run(f"run{weight}", **options) == 0
        weights.append(load_file(tmp_path / f"run{weight}/checkpoint-2/model.safetensors"))
    changed = [name for name in weights[0] if not torch.equal(weights[0][name], weights[1][name])]
    assert any("attention.self.query" in name for name in changed)


def test_view_options_without_effect_are_refused(run, capsys):
    assert run("run", deletion_rate=0.3) == 2
    assert "--deletion_rate" in (said := capsys.readouterr().err) and "no effect" in said
    assert run("run", view="crop", view_neighbors=3) == 2
    assert "--view_neighbors" in (said := capsys.readouterr().err) and "no effect" in said


def test_options_of_a_view_are_checked_and_documented(run, capsys):
    assert run("run", view="deletion", deletion_rate=1) == 2
    assert "--deletion_rate is 1.0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run_unsup.main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "--view {dropout,neighbor,repetition,crop,deletion}" in shown
    assert "--deletion_rate X Probability of each token" in shown


def test_view_with_other_tokens_needs_no_dropout(command, tmp_path, capsys):
    still = save_bert(tmp_path / "still", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    options = dict(model_name=still, objective="simcse", max_steps=2, measure_drift=False)
    assert run_unsup.main(command(view="crop", **options)) == 0
    assert run_unsup.main(command(output_dir=tmp_path / "other", **options)) == 2
    assert "dropout" in capsys.readouterr().err
