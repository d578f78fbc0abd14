"""Contrastive tension against the losses of sentence-transformers, and a loop."""

import math

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.losses import ContrastiveTensionLoss, ContrastiveTensionLossInBatchNegatives

from informin.objectives import ContrastiveTension
from informin.objectives.contrastive_tension import contrastive_tension
from tests.conftest import make_sentences, raises_usage, save_sentence_transformer
from tests.objectives.conftest import assert_gradient, assert_gradients, first_batch, without_dropout
from trainer_informin import InforMinTrainer, InforMinTrainingArguments

NEGATIVES = 3


def apart(encoder) -> None:
    """Change the weights of the second encoder, which are those of the trained one before the first step."""
    with torch.no_grad():
        for weight in encoder.parameters():
            weight.mul_(1.1)


def library_loss(loss, batch):
    """Return the mean loss of sentence-transformers for the pairs of a batch (B, L)."""
    if isinstance(loss, ContrastiveTensionLossInBatchNegatives):
        return loss([batch], None)
    size = len(batch["input_ids"])
    first = torch.arange(size).repeat_interleave(1 + NEGATIVES)
    second = (first + torch.arange(1 + NEGATIVES).repeat(size)) % size  # the sentence itself, then its negatives
    return loss([{name: x[rows] for name, x in batch.items()} for rows in (first, second)]) / len(first)


@pytest.mark.parametrize(
    "form, library", [("paper", ContrastiveTensionLoss), ("in_batch", ContrastiveTensionLossInBatchNegatives)]
)
def test_value_and_gradient_are_those_of_sentence_transformers(bert, tmp_path, form, library):
    folder = str(save_sentence_transformer(tmp_path / "model", bert, normalize=False))
    how = dict(use_cpu=True, bf16=False, eval_strategy="no", per_device_train_batch_size=6)
    args = InforMinTrainingArguments(str(tmp_path / "run"), **how)
    term = ContrastiveTension(form=form, tension_negatives=NEGATIVES)
    trainer = InforMinTrainer(folder, args, train_dataset=make_sentences(12), objective=term)
    model, rows = without_dropout(trainer.model), first_batch(trainer)
    second = model.heads["contrastive_tension"].encoder
    theirs = library(without_dropout(SentenceTransformer(folder, device="cpu")))
    apart(second)
    apart(theirs.model1)
    loss = trainer.compute_loss(model, rows)
    expected = library_loss(theirs, {name: rows[name] for name in ("input_ids", "attention_mask")})
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    assert_gradients(model.base_model, theirs.model2[0].auto_model)
    assert_gradients(second, theirs.model1[0].auto_model)


def test_the_loss_is_a_loop_over_pairs(views):
    h1, h2 = (0.5 * x for x in views)
    negatives = torch.ones(7, 7, dtype=torch.bool)
    negatives[2, 4] = negatives[4, 2] = False  # copies
    losses = []
    for i in range(7):
        losses.append(math.log1p(math.exp(-float(h1[i] @ h2[i]))))
        for k in ((i + 1) % 7, (i + 2) % 7):
            if negatives[i, k]:
                losses.append(math.log1p(math.exp(float(h1[i] @ h2[k]))))
    assert contrastive_tension(h1, h2, 2, negatives).item() == pytest.approx(sum(losses) / 20, rel=1e-5)
    every = contrastive_tension(h1, h2, 6)
    torch.testing.assert_close(contrastive_tension(h1, h2, 9), every, msg="no more than all others")
    order = torch.randperm(7)
    torch.testing.assert_close(contrastive_tension(h1[order], h2[order], 6), every)
    assert_gradient(lambda first, second: contrastive_tension(first, second, 2), views)


def test_the_number_of_negatives_is_checked():
    with raises_usage(option="tension_negatives"):
        ContrastiveTension(tension_negatives=0)
