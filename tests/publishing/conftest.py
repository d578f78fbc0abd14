"""Exported folders shared by the tests in this folder."""

import shutil
from pathlib import Path

import pytest

from tests.publishing.helpers import export_of
from tests.support import one_layer

bert, roberta, st_mean = one_layer.bert, one_layer.roberta, one_layer.st_mean


@pytest.fixture(scope="session")
def exported(bert, tmp_path_factory) -> Path:
    """The export of a BERT with mean pooling and normalization. Tests do not change it."""
    return export_of(bert, tmp_path_factory.mktemp("exports") / "export")


@pytest.fixture
def folder(exported, tmp_path) -> Path:
    """A copy of the export, with a space in its path."""
    return Path(shutil.copytree(exported, tmp_path / "my models" / "m"))
