"""A tiny finished model, and texts."""

from pathlib import Path

import pytest

from informin.model.open import load_model
from tests.conftest import make_sentences
from tests.support import one_layer

bert, roberta, st_mean = one_layer.bert, one_layer.roberta, one_layer.st_mean


@pytest.fixture(scope="session")
def model(bert, tmp_path_factory) -> Path:
    """The folder of a SentenceTransformer with mean pooling."""
    folder = tmp_path_factory.mktemp("finished") / "m"
    load_model(bert, pooler="mean", device="cpu").save_pretrained(str(folder), create_model_card=False)
    return folder


@pytest.fixture
def texts(tmp_path) -> Path:
    """A file of 60 texts."""
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(make_sentences(60)) + "\n")
    return path
