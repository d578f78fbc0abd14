"""Runs from Python and in a notebook equal those from the command line, including the report."""

import json
import re

import nbformat
import pytest
from nbclient import NotebookClient
from safetensors.torch import load_file

import run_unsup
from informin.training.options import InforMinTrainingArguments
from informin.training.run_summary import load_lines
from tests import forked
from tests.cli.test_run import ENVIRONMENT, assert_same_weights
from tests.conftest import make_sentences, raises_usage
from trainer_informin import InforMinTrainer

OPTIONS = dict(max_steps=3, per_device_train_batch_size=8, use_cpu=True, bf16=False, logging_steps=1, seed=5)
PYTHON = """
from trainer_informin import InforMinTrainer, InforMinTrainingArguments
sentences = open({file!r}).read().splitlines()
args = InforMinTrainingArguments(output_dir="python", recipe="adapt", **{options!r})
trainer = InforMinTrainer({model!r}, args, sentences)
trainer.train()
trainer.export()
"""


@pytest.fixture
def recipe_run(bert, tmp_path, monkeypatch, logging_as_before):
    """Return the output of a run with a recipe, and a program for the same run."""
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("\n".join(make_sentences(96)) + "\n")
    monkeypatch.chdir(tmp_path)
    given = [f"--{name}={value}" for name, value in OPTIONS.items()]
    command = [f"--model_name={bert}", "--recipe=adapt", f"--train_file={sentences}", "--output_dir=command", *given]
    run = forked.run(forked.script("run_unsup.py", command, env=ENVIRONMENT, cwd=tmp_path))
    assert run.returncode == 0, run.stderr
    return run.stdout, PYTHON.format(file=str(sentences), model=str(bert), options=OPTIONS)


def without_measurements(text: str) -> str:
    """Remove times, memory, the folder's name, the widths of columns, and the page that only the command writes."""
    text = re.sub(r"Report: .*", "", text)
    text = re.sub(r"(training speed|peak memory) .*", r"\1", text.replace("python", "command"))
    return re.sub(" +", " ", text).strip()


def test_notebook_prints_and_trains_like_the_command(recipe_run, tmp_path, monkeypatch):
    shown, program = recipe_run
    for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, ENVIRONMENT[name])
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(program.strip())])
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = notebook.cells[0].outputs
    stream = {name: "".join(o.text for o in outputs if o.get("name") == name) for name in ("stdout", "stderr")}
    assert without_measurements(stream["stdout"]) == without_measurements(shown)
    assert "Embedding 96 sentences with the guide" in stream["stderr"]
    assert "training:   0%" in stream["stderr"] and "guide:   0%" in stream["stderr"]
    for line in ("drift, 10 nearest neighbors kept", "training speed", "Load the model:"):
        assert line in stream["stdout"]
    assert_same_weights(tmp_path / "command", tmp_path / "python")
    first, second = (json.loads((tmp_path / name / "training.json").read_text()) for name in ("command", "python"))
    assert first["options"] == second["options"] and first["drift"] == second["drift"] is not None


def test_max_train_samples_draws_the_same_sample_in_python(bert, command, tmp_path, sentences_file, logging_as_before):
    """On the command line it applies to files, in Python to a list."""
    assert run_unsup.main(command(max_train_samples=64, measure_drift=False)) == 0
    record = json.loads((tmp_path / "run" / "training.json").read_text())
    args = InforMinTrainingArguments(str(tmp_path / "python"), max_train_samples=64, eval_strategy="no", use_cpu=True)
    args.per_device_train_batch_size = 16
    trainer = InforMinTrainer(str(bert), args, sentences_file.read_text().splitlines())
    assert trainer.record()["data"]["sha256"] == record["data"]["sha256"] and len(trainer.train_dataset) == 64


def test_given_options_override_the_recipe(tmp_path):
    args = InforMinTrainingArguments(str(tmp_path), recipe="adapt", max_steps=7, replay_size=4)
    assert (args.objective, args.guided_neighbors, args.max_train_samples) == ("guided", 10, 20000)
    assert (args.max_steps, args.replay_size, args.output_dir) == (7, 4, str(tmp_path))


def test_unknown_recipe_gives_the_same_error_as_the_command_line(command, capsys, logging_as_before):
    with raises_usage(option="recipe", found="is adpt", fix="Did you mean adapt?") as error:
        InforMinTrainingArguments(recipe="adpt")
    assert run_unsup.main(command(recipe="adpt")) == 2
    assert str(error.value).replace("`recipe`", "--recipe") in capsys.readouterr().err


def test_report_is_printed_once(bert, arguments, capsys, tmp_path):
    trainer = InforMinTrainer(str(bert), arguments(eval_strategy="no", report_to=[]), make_sentences(96))
    trainer.export(tmp_path / "untrained")
    assert "peak memory" not in capsys.readouterr().out
    trainer.train()
    trainer.export()
    assert capsys.readouterr().out.count("peak memory") == 1
    assert json.loads((tmp_path / "run" / "training.json").read_text())["drift"] is not None
    trainer.export(tmp_path / "again")
    assert "peak memory" not in capsys.readouterr().out
    trainer.export(tmp_path / "third", report=False)
    assert load_file(tmp_path / "third" / "model.safetensors").keys() == trainer.model.base_model.state_dict().keys()


@pytest.mark.parametrize(
    ("changes", "loads"),
    [
        ({}, "transformers"),
        ({"pooling": "mean"}, "sentence_transformers"),
        ({"normalize": True}, "sentence_transformers"),
        ({"prompt": "query: "}, "sentence_transformers"),
    ],
)
def test_printed_lines_load_the_exported_folder(tmp_path, changes, loads):
    (tmp_path / "config.json").write_text(json.dumps({"informin": {"pooling": "cls"} | changes}))
    (tmp_path / "modeling_informin.py").touch()
    assert f"from {loads} import" in load_lines(str(tmp_path))
    assert "trust_remote_code" not in load_lines(str(tmp_path)) or loads == "transformers"
    (tmp_path / "modeling_informin.py").unlink()
    assert "from sentence_transformers import" in load_lines(str(tmp_path))
