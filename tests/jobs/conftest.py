"""Models and texts for the Python functions."""

from pathlib import Path

import numpy as np
import pytest

from informin.models.model import Model
from tests.conftest import make_sentences
from tests.models.any_encoder.helpers import sentence_transformer
from tests.models.any_encoder.st_models import static

TEXTS = make_sentences(320)


@pytest.fixture(scope="package")
def words(tmp_path_factory) -> Path:
    """A static model, which sentence-transformers runs."""
    return static(tmp_path_factory.mktemp("models") / "words")


@pytest.fixture(scope="package")
def sentences(bert, tmp_path_factory) -> Path:
    """A native model with mean pooling and a default prompt."""
    return sentence_transformer(bert, tmp_path_factory.mktemp("models") / "sentences")


@pytest.fixture(scope="package")
def file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


@pytest.fixture(autouse=True)
def silent(capfd, logging_as_before):
    """The functions print nothing. Tests read what a command prints before they end."""
    yield
    assert capfd.readouterr().out == ""


def embedded(encoder: Model, texts: list[str] = TEXTS) -> np.ndarray:
    (pooler,) = encoder.poolers
    return encoder(texts)[pooler]
