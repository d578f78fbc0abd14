"""Fixtures for tests of training any encoder."""

from pathlib import Path

import pytest
import transformers

from informin.training.options import InforMinTrainingArguments
from tests.conftest import FOUR_STEPS, make_sentences
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
