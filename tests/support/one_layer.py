"""Encoders of one layer, for tests of what surrounds an encoder: runs, files and commands.

A second layer takes a fifth of the time of their tests. What computes through several layers is tested in tests/fast,
tests/objectives and tests/model. A conftest.py that names these fixtures replaces those of tests/conftest.py.
"""

from pathlib import Path

import pytest

from tests.conftest import save_bert, save_roberta, save_sentence_transformer


@pytest.fixture(scope="session")
def bert(tmp_path_factory) -> Path:
    return save_bert(tmp_path_factory.mktemp("models") / "tiny-bert", num_hidden_layers=1)


@pytest.fixture(scope="session")
def roberta(tmp_path_factory) -> Path:
    return save_roberta(tmp_path_factory.mktemp("models") / "tiny-roberta", num_hidden_layers=1)


@pytest.fixture(scope="session")
def st_mean(tmp_path_factory, bert) -> Path:
    """A finished model: BERT with mean pooling and normalization."""
    return save_sentence_transformer(tmp_path_factory.mktemp("models") / "st-mean", bert)
