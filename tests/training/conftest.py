"""Fixtures to build options and trainers, and two short runs."""

import shutil
from pathlib import Path

import pytest
from transformers import AutoConfig

from informin.cli import train
from informin.cli.train_options import parse
from informin.files import write_manifest
from informin.objectives.presets import Encoder
from informin.training.arguments import InforMinTrainingArguments, with_paper_values
from informin.training.objective import activate
from tests.conftest import FOUR_STEPS, how_to_train, make_sentences
from tests.support import one_layer
from trainer_informin import InforMinTrainer

bert, roberta, st_mean = one_layer.bert, one_layer.roberta, one_layer.st_mean


@pytest.fixture
def encoder(bert):
    """BERT alone: what differs for RoBERTa is tested with the models and objectives."""
    return bert


@pytest.fixture
def options(bert, tmp_path):
    """Parse a command line and an optional YAML file into one dictionary, with the options filled in for a model."""

    def options(*argv: str, yaml: str | None = None, name=None) -> dict:
        if yaml is not None:
            (tmp_path / "run.yaml").write_text(yaml)
            argv = (f"--recipe={tmp_path / 'run.yaml'}", *argv)
        given = parse([f"--model_name={name or bert}", "--use_cpu=true", *argv])
        config = AutoConfig.from_pretrained(given.model_name)
        encoder = Encoder(model_type=config.model_type, width=config.hidden_size)
        args = with_paper_values(given.args, given.objective, encoder, given.model_name)
        active = activate(given.objective, encoder, given.view, args.view_dropout)
        return vars(given.data) | vars(given.card) | vars(args) | active.options

    return options


@pytest.fixture
def arguments(tmp_path):
    """Build the arguments of a run of four steps in fp32; keywords change or add options."""

    def build(**changes) -> InforMinTrainingArguments:
        return InforMinTrainingArguments(str(tmp_path / "run"), **(FOUR_STEPS | dict(logging_steps=1) | changes))

    return build


@pytest.fixture
def unscored(arguments):
    """Build the arguments of a run of two steps without evaluation; keywords change or add options."""
    return lambda **changes: arguments(**(dict(max_steps=2, eval_strategy="no") | changes))


@pytest.fixture
def build(encoder, pairs_file, tmp_path):
    """Build a trainer on 64 sentences; keywords are options."""

    def make(callbacks=None, **options):
        how = how_to_train(str(tmp_path / "run"), **(FOUR_STEPS | dict(logging_steps=1) | options))
        data = dict(train_dataset=make_sentences(64), eval_dataset=pairs_file)
        return InforMinTrainer(str(encoder), callbacks=callbacks, **data, **how)

    return make


@pytest.fixture(scope="session")
def finished_run(bert, sentences_file, pairs_file, tmp_path_factory) -> Path:
    """A run of four steps that was not interrupted, with checkpoints at 2 and 4."""
    folder = tmp_path_factory.mktemp("through") / "run"
    options = dict(model_name=bert, train_file=sentences_file, eval_pairs=pairs_file, output_dir=folder)
    assert train.main([f"--{name}={value}" for name, value in (options | FOUR_STEPS).items()]) == 0
    return folder


@pytest.fixture
def interrupted_run(finished_run, tmp_path) -> Path:
    """The same run, interrupted after step 2, in the folder of `command`."""
    folder = tmp_path / "run"
    shutil.copytree(finished_run / "checkpoint-2", folder / "checkpoint-2")
    state = folder / "checkpoint-2" / "trainer_state.json"
    state.write_text(state.read_text().replace(str(finished_run), str(folder)))
    write_manifest(folder / "checkpoint-2")
    return folder
