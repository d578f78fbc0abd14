"""Fixtures for tests of training any encoder."""

import functools
from pathlib import Path

import pytest
import transformers

from informin.training.options import InforMinTrainingArguments
from tests.conftest import FOUR_STEPS, make_sentences
from tests.models.any_encoder.helpers import general_trainer
from tests.models.any_encoder.st_models import save_family
from trainer_informin import InforMinTrainer


@pytest.fixture(autouse=True)
def quiet(logging_as_before):
    transformers.utils.logging.set_verbosity_error()


@pytest.fixture
def trainer(folder_of, tmp_path):
    """Return a function that creates a trainer. ModernBERT has no dropout of its own, so it gets a rate."""

    def build(model: str | Path, output_dir: Path = tmp_path / "run", **options) -> InforMinTrainer:
        folder = folder_of(model) if isinstance(model, str) else model
        if model == "modernbert" and "scd" not in options.values():
            options = {"view_dropout_rate": 0.1} | options
        how = FOUR_STEPS | dict(max_steps=2, eval_strategy="no", save_strategy="no", report_to=[]) | options
        return InforMinTrainer(str(folder), InforMinTrainingArguments(str(output_dir), **how), make_sentences(96))

    return build


@pytest.fixture(scope="session")
def family(tmp_path_factory):
    """Return a function that creates a model of a family once. Keeps copies of remote code in a temporary folder."""
    with pytest.MonkeyPatch.context() as patch:
        modules = str(tmp_path_factory.mktemp("modules"))
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", modules)
        yield functools.cache(lambda name: save_family(name, tmp_path_factory.mktemp("families")))


@pytest.fixture
def train(family, tmp_path):
    """Return a function that creates a trainer for a family, a folder or a SentenceTransformer."""

    def build(model, output_dir=None, **options) -> InforMinTrainer:
        model = family(model) if isinstance(model, str) else model
        return general_trainer(model, output_dir or tmp_path / "run", **options)

    return build
