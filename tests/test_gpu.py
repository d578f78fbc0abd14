"""Embedding and training on a GPU. Without one, a CPU is compared with itself, so that these tests stay in order."""

import numpy as np
import pytest
import torch

from informin.models.embedding import embed
from informin.models.opening import load_model
from tests.conftest import FOUR_STEPS, make_sentences, save_bert
from trainer_informin import InforMinTrainer, InforMinTrainingArguments

DEVICE, PRECISIONS = ("cuda", ["bf16", "fp16"]) if torch.cuda.is_available() else ("cpu", ["bf16"])


def test_embeddings_equal_those_of_a_cpu(st_mean):
    texts = make_sentences(200)
    cpu, gpu = (embed(load_model(st_mean, device=device), texts, title=None) for device in ("cpu", DEVICE))
    np.testing.assert_allclose(gpu, cpu, atol=1e-5)


@pytest.mark.parametrize("backend, padding_free", [("native", False), ("native", True), ("st", False)])
def test_a_step_has_the_loss_of_a_cpu(tmp_path, backend, padding_free):
    """Without dropout, with the same cropped views."""
    model = save_bert(tmp_path / "still", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    how = FOUR_STEPS | dict(objective="simcse", view="crop", max_steps=1, logging_steps=1, eval_strategy="no")
    how |= dict(backend=backend, pooler="mean", padding_free=padding_free, save_strategy="no", report_to="none")
    losses = []
    for use_cpu in (True, False):
        args = InforMinTrainingArguments(str(tmp_path / str(use_cpu)), **how | {"use_cpu": use_cpu})
        trainer = InforMinTrainer(str(model), args, make_sentences(64))
        trainer.train()
        losses.append(next(entry["loss"] for entry in trainer.state.log_history if "loss" in entry))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_resuming_gives_the_same_weights(bert, tmp_path, precision):
    how = FOUR_STEPS | dict(
        objective="informin", eval_strategy="no", save_strategy="steps", save_steps=2, use_cpu=False
    )
    how |= {"report_to": "none", "bf16": False, precision: True}
    whole = InforMinTrainer(str(bert), InforMinTrainingArguments(str(tmp_path / "run"), **how), make_sentences(64))
    whole.train()
    again = InforMinTrainer(str(bert), InforMinTrainingArguments(str(tmp_path / "again"), **how), make_sentences(64))
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    expected = whole.model.state_dict()
    assert [name for name, x in again.model.state_dict().items() if not torch.equal(x, expected[name])] == []
