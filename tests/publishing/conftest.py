"""Exported folders shared by the tests in this folder."""

from pathlib import Path

import pytest

from tests.publishing.card_helpers import export_of
from tests.publishing.export_helpers import Run


@pytest.fixture
def folder(bert, tmp_path) -> Path:
    return export_of(bert, tmp_path / "export")


@pytest.fixture(scope="session")
def data(sentences_file, pairs_file) -> dict:
    return dict(train_file=sentences_file, eval_pairs=pairs_file)


@pytest.fixture(scope="session")
def bert_run(bert, data, tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    return Run(folder, model_name=bert, mlm_weight=0.1, report_to="tensorboard", **data)


@pytest.fixture(scope="session")
def roberta_run(roberta, data, tmp_path_factory) -> Run:
    return Run(tmp_path_factory.mktemp("runs") / "tiny", model_name=roberta, mlm_weight=0.1, **data)


@pytest.fixture(params=["bert", "roberta"])
def run(request) -> Run:
    """The run of each architecture."""
    return request.getfixturevalue(f"{request.param}_run")


@pytest.fixture(scope="session")
def other_seed(bert, data, tmp_path_factory) -> Path:
    return Run(tmp_path_factory.mktemp("runs") / "other", model_name=bert, mlm_weight=0.1, seed=1, **data).folder
