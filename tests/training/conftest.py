"""Fixtures to build options from the command line, YAML and Python."""

import json
from pathlib import Path

import pytest

import run_unsup
from informin.training.command_line import parse
from informin.training.options import InforMinTrainingArguments
from tests.conftest import FOUR_STEPS, make_sentences, resolve_for
from tests.training.resuming_helpers import interrupted_copy
from trainer_informin import InforMinTrainer


@pytest.fixture
def model(tmp_path):
    """Create a model folder that has only a configuration."""

    def model(architecture="bert", hidden_size=768) -> str:
        folder = tmp_path / f"{architecture}-{hidden_size}"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"model_type": architecture, "hidden_size": hidden_size}))
        return str(folder)

    return model


@pytest.fixture
def options(model, tmp_path):
    """Parse a command line and an optional YAML file into one dictionary."""

    def options(*argv: str, yaml: str | None = None, name: str | None = None) -> dict:
        if yaml is not None:
            (tmp_path / "run.yaml").write_text(yaml)
            argv = (f"--config={tmp_path / 'run.yaml'}", *argv)
        _, *built = parse([f"--model_name={name or model()}", "--use_cpu=true", *argv])
        return {key: value for part in built for key, value in vars(part).items()}

    return options


@pytest.fixture
def python(model):
    """Build the same options in Python and resolve them for a model, into one dictionary."""

    def python(name: str | None = None, **given) -> dict:
        args = InforMinTrainingArguments(use_cpu=True, **given)
        return vars(resolve_for(args, name or model()))

    return python


@pytest.fixture
def arguments(tmp_path):
    """Build the arguments of a run of four steps in fp32; keywords change or add options."""

    def build(**changes) -> InforMinTrainingArguments:
        return InforMinTrainingArguments(str(tmp_path / "run"), **(FOUR_STEPS | dict(logging_steps=1) | changes))

    return build


@pytest.fixture(scope="session")
def finished_run(bert, sentences_file, pairs_file, tmp_path_factory) -> Path:
    """A run of four steps that was not interrupted, with checkpoints at 2 and 4."""
    folder = tmp_path_factory.mktemp("through") / "run"
    options = dict(model_name=bert, train_file=sentences_file, eval_pairs=pairs_file, output_dir=folder)
    assert run_unsup.main([f"--{name}={value}" for name, value in (options | FOUR_STEPS).items()]) == 0
    return folder


@pytest.fixture
def interrupted_run(finished_run, tmp_path) -> Path:
    """The same run, interrupted after step 2, in the folder of `command`."""
    return interrupted_copy(finished_run, tmp_path / "run")


@pytest.fixture
def build(encoder, pairs_file, arguments):
    """Build a trainer on 64 sentences; keywords are training arguments."""

    def make(callbacks=None, **options):
        args = arguments(**options)
        return InforMinTrainer(str(encoder), args, make_sentences(64), pairs_file, callbacks=callbacks)

    return make
