"""Denoising against the loss of sentence-transformers, and a loop."""

from types import SimpleNamespace

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.losses import DenoisingAutoEncoderLoss
from sentence_transformers.models import Pooling, Transformer
from transformers import DistilBertConfig, DistilBertModel

from informin.objectives import Contrast, Denoising
from informin.objectives.denoising import denoising
from informin.views import Deletion
from tests.conftest import FOUR_STEPS, how_to_train, make_sentences, raises_usage
from tests.objectives.conftest import assert_gradients, first_batch, without_dropout
from trainer_informin import InforMinTrainer, InforMinTrainingArguments


@pytest.mark.parametrize("terms", [[Denoising()], [Denoising(), Contrast(weight=1e-12)]], ids=["alone", "beside"])
@pytest.mark.parametrize("encoder", ["bert", "roberta"], indirect=True)
def test_value_and_gradient_are_those_of_sentence_transformers(encoder, tmp_path, terms):
    how = dict(use_cpu=True, bf16=False, eval_strategy="no", per_device_train_batch_size=6, projection_head="none")
    args = InforMinTrainingArguments(str(tmp_path / "run"), pooler="cls", **how)
    sentences = make_sentences(6)
    trainer = InforMinTrainer(str(encoder), args, train_dataset=sentences, objective=terms, view=Deletion(rate=0.5))
    model, rows = without_dropout(trainer.model), first_batch(trainer)
    head = model.heads["denoising"]
    st = SentenceTransformer(modules=[Transformer(str(encoder)), Pooling(32, pooling_mode="cls")], device="cpu")
    theirs = without_dropout(DenoisingAutoEncoderLoss(st))
    with torch.no_grad():
        own = [weight for name, weight in theirs.decoder.named_parameters() if "crossattention" in name]
        for weight, cross in zip(own, head.parameters(), strict=True):
            weight.copy_(cross)
    number = 1 if len(terms) == 1 else 2
    assert len(rows["input_ids"]) == 6 * number
    damaged = {name: rows[name][-6:] for name in ("input_ids", "attention_mask")}
    named = {"input_ids": rows.get("original_ids", rows["input_ids"][:6])}
    assert damaged["attention_mask"].sum() < (named["input_ids"] != trainer.processing_class.pad_token_id).sum()
    loss, expected = trainer.compute_loss(model, rows), theirs([damaged, named], None)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    assert_gradients(model.base_model, theirs.encoder[0].auto_model)
    for weight, cross in zip(own, head.parameters()):
        torch.testing.assert_close(cross.grad, weight.grad, rtol=1e-3, atol=1e-5)


def test_the_decoder_writes_the_sentences_and_not_their_masks(bert, tmp_path):
    options = dict(objective="tsdae", mlm_weight=0.1, masked_views=True, eval_strategy="no")
    how = how_to_train(str(tmp_path), **FOUR_STEPS, **options)
    trainer = InforMinTrainer(str(bert), train_dataset=make_sentences(16), **how)
    rows = first_batch(trainer)
    mask_token = trainer.processing_class.mask_token_id
    assert (rows["input_ids"] == mask_token).any()
    _, labels = trainer.compute_loss(trainer.model.train(), rows, return_outputs=True)[1].heads["denoising"]
    assert not (labels == mask_token).any()


def test_the_loss_is_a_loop_over_tokens():
    logits = torch.randn(3, 4, 7, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1, 2, -100, -100], [3, 4, 5, 6], [0, -100, -100, -100]])
    losses = [-logits[i, t].log_softmax(-1)[labels[i, t]] for i in range(3) for t in range(4) if labels[i, t] >= 0]
    torch.testing.assert_close(denoising(logits, labels), sum(losses) / 7)


def test_an_encoder_that_cannot_decode_is_refused():
    encoder = DistilBertModel(DistilBertConfig(vocab_size=40, dim=32, n_layers=1, n_heads=2, hidden_dim=32))
    with raises_usage(option="denoising_weight"):
        Denoising().head(SimpleNamespace(base_model=encoder, device=torch.device("cpu")))
