"""An objective from one file outside the package: its flags, training, resuming, export. See own_objective.py."""

import copy
import dataclasses
import importlib
import json
import pickle

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

import run_unsup
from informin.cli import export as export_command
from informin.objectives import OBJECTIVES
from informin.training.options import InforMinTrainingArguments, arguments_class
from tests.conftest import ROOT, raises_usage, resolve_for
from trainer_informin import InforMinTrainer


@pytest.fixture(autouse=True)
def own_objective(logging_as_before):
    """Import the objective as a program would, and remove it again."""
    yield importlib.reload(importlib.import_module("tests.own_objective"))
    del OBJECTIVES["spread"]


@pytest.fixture
def own(command, tmp_path):
    """Options of a four-step run with that objective."""
    chosen = dict(objective="spread", spread_weight=0.5, spread_power=2, load_best_model_at_end=False)
    return lambda folder, **changes: command(output_dir=tmp_path / folder, **(chosen | changes))


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_outside_objective_trains_resumes_and_exports(own, tmp_path, capsys):
    assert run_unsup.main(own("whole")) == 0
    assert "Spread on tiny-bert: 96 sentences" in capsys.readouterr().out
    began, ended = (load_file(tmp_path / f"whole/checkpoint-{n}/model.safetensors") for n in (2, 4))
    for name in (
        "heads.spread.linear.weight",
        "heads.spread.center",
        "mlp.dense.weight",
    ):  # two trained by the optimizer, one by the head
        assert not torch.equal(began[name], ended[name]), name
    logged = read(tmp_path / "whole/checkpoint-4/trainer_state.json")["log_history"]
    terms = [entry for entry in logged if "terms/spread" in entry]
    assert len(terms) == 2 and all(entry["terms/spread"] < 0 < entry["terms/contrast"] for entry in terms)
    assert terms[0]["loss"] == pytest.approx(terms[0]["terms/contrast"] + 0.5 * terms[0]["terms/spread"], rel=1e-3)

    # Resuming from the middle gives bit-equal weights, including the head's state.
    (tmp_path / "halves").mkdir()
    (tmp_path / "whole/checkpoint-2").rename(tmp_path / "halves/checkpoint-2")
    assert run_unsup.main(own("halves", resume_from_checkpoint="last")) == 0
    resumed = load_file(tmp_path / "halves/checkpoint-4/model.safetensors")
    assert resumed.keys() == ended.keys()
    assert [name for name in ended if not torch.equal(resumed[name], ended[name])] == []

    record = read(tmp_path / "whole/training.json")
    assert record["options"]["spread_power"] == 2 and record["options"]["spread_weight"] == 0.5
    assert [term["title"] for term in record["objective"]["terms"]] == ["contrast", "spread around a center"]
    card = (tmp_path / "whole/README.md").read_text(encoding="utf-8")
    assert "of Spread on 96 sentences" in card and "| spread_power | 2" in card

    # Without the objective's file, an export works and lacks only the head.
    del OBJECTIVES["spread"]
    assert export_command.main([str(tmp_path / "whole/checkpoint-4"), str(tmp_path / "again")]) == 0
    OBJECTIVES["spread"] = None  # for the fixture
    for name in ("model.safetensors", "projection_head/model.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "halves" / name).read_bytes(), name
    model, report = AutoModel.from_pretrained(tmp_path / "again", trust_remote_code=True, output_loading_info=True)
    assert not any("spread" in name for name in model.state_dict()) and not report["missing_keys"]


def test_published_values_checks_and_flags_of_an_outside_objective(own, capsys, bert):
    args = arguments_class()(objective="spread")
    args = resolve_for(args, bert)
    assert (args.per_device_train_batch_size, args.learning_rate, args.spread_weight) == (24, 2e-3, 0.25)
    assert pickle.loads(pickle.dumps(args)) == copy.copy(args) == args
    assert run_unsup.main(own("run", spread_power=0)) == 2
    assert "error: --spread_power is 0.0; expected a number above 0." in capsys.readouterr().err
    options = [option for option in own("run") if not option.startswith("--objective")]
    assert run_unsup.main([*options, "--objective=simcse"]) == 2
    assert "--spread_weight 0.5 has no effect with --objective simcse" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run_unsup.main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "--spread_weight X Of the spread. Default: 0.25 for spread, else 0 (off)." in shown


def test_the_order_of_imports_does_not_matter():
    """The class was imported before the objective, which adds options to it."""
    args = InforMinTrainingArguments(objective="spread", spread_weight=1.0, use_cpu=True)
    assert isinstance(args, InforMinTrainingArguments) and args.spread_weight == 1.0
    assert dataclasses.replace(args, seed=3).spread_weight == 1.0
    assert arguments_class() is arguments_class() is not InforMinTrainingArguments


def test_arguments_of_an_own_class_need_the_objective_first():
    class Mine(InforMinTrainingArguments):
        pass

    with raises_usage(option="objective", found="spread_weight, spread_power", fix="before you define a class"):
        Mine(objective="spread")


def test_a_file_is_imported_on_the_command_line(own, tmp_path, capsys):
    del OBJECTIVES["spread"]
    file = str(ROOT / "tests" / "own_objective.py")
    assert run_unsup.main([*own("run"), "--import", file]) == 0
    assert read(tmp_path / "run/training.json")["options"]["spread_power"] == 2
    (tmp_path / "broken.py").write_text("1 / 0")
    assert run_unsup.main([*own("other"), f"--import={tmp_path}/broken.py"]) == 2
    assert f"error: --import {tmp_path}/broken.py: ZeroDivisionError: division by zero" in capsys.readouterr().err
    for wrong in (["--import", str(tmp_path / "none.py")], ["--import"]):
        assert run_unsup.main([*own("other"), *wrong]) == 2
        assert "which is not a file; expected a Python file" in capsys.readouterr().err


def test_outside_objective_trains_from_python(bert, sentences_file, pairs_file, tmp_path):
    sentences = sentences_file.read_text().splitlines()
    options = dict(objective="spread", max_steps=2, eval_strategy="no", use_cpu=True, bf16=False, report_to=[])
    trainer = InforMinTrainer(str(bert), arguments_class()(str(tmp_path / "run"), **options), sentences)
    before = trainer.model.heads["spread"].linear.weight.clone()
    trainer.train()
    assert not torch.equal(trainer.model.heads["spread"].linear.weight, before)
    assert trainer.model.heads["spread"].center.abs().sum() > 0


def test_resumed_run_cannot_change_its_heads(own, capsys):
    """Also if the term does not declare which options shape its head."""
    assert run_unsup.main(own("run", max_steps=2)) == 0
    changed = own("run", spread_weight=0, spread_power=None, resume_from_checkpoint="last", resume_with_changes="true")
    assert run_unsup.main(changed) == 2
    assert "with the head of spread True, and now it is False (set by --spread_weight)" in capsys.readouterr().err
