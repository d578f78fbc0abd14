"""Runs to push from the command line."""

import shutil
from pathlib import Path

import pytest

import run_unsup
from tests.cli.push_command.helpers import FLAGS, OPTIONS
from tests.publishing.push.push_helpers import (
    REPO,
)


@pytest.fixture(scope="session")
def trained(bert, sentences_file, pairs_file, tmp_path_factory) -> Path:
    """The output folder of a run without a push."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    options = dict(model_name=bert, train_file=sentences_file, eval_pairs=pairs_file, output_dir=folder)
    assert run_unsup.main([f"--{name}={value}" for name, value in (options | OPTIONS | FLAGS).items()]) == 0
    return folder


@pytest.fixture
def folder(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "model"))


@pytest.fixture
def train(command):
    """Run run_unsup.py with a push, and return the exit code."""

    def run(**changes) -> int:
        options = dict(push_to_hub="true", hub_model_id=REPO, hub_always_push="true", save_total_limit=None) | changes
        return run_unsup.main(command(**options))

    return run
