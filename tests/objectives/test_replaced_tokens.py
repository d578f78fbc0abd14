"""Replaced tokens: a loop, what the discriminator reads, and which generators fit."""

import shutil

import pytest
import torch
from transformers import BertForMaskedLM

from informin.objectives import ReplacedTokens
from informin.objectives.replaced_tokens import replaced_tokens
from modeling_informin import HeadInputs
from tests.conftest import raises_usage
from tests.objectives.conftest import logged, model_of, rows


def test_the_loss_is_a_loop_over_tokens():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 4, 2, generator=generator)
    replaced = torch.rand(3, 4, generator=generator) < 0.5
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]])
    tokens = [(i, t) for i in range(3) for t in range(4) if mask[i, t]]
    expected = sum(-logits[i, t].log_softmax(-1)[int(replaced[i, t])] for i, t in tokens) / 8
    found = [bool(logits[i, t, 1] > logits[i, t, 0]) for i, t in tokens if replaced[i, t]]
    values = replaced_tokens(logits, replaced, mask)
    torch.testing.assert_close(values["replaced_tokens"], expected)
    assert 0 < sum(found) < len(found) and values["found"].item() == pytest.approx(sum(found) / len(found))


@pytest.fixture
def called(encoder):
    """A head, and a function that calls it on rows of two views."""
    model = model_of(encoder)
    head = ReplacedTokens(generator=str(encoder), replaced_fraction=0.5).head(model.eval()).eval()
    batch = rows(encoder)
    projection = torch.randn(12, 32, generator=torch.Generator().manual_seed(0))

    def call(projection=projection, **changes):
        torch.manual_seed(0)
        given = batch | changes
        ids = torch.arange(6)
        return head(model, HeadInputs(projection, projection, None, *given.values(), ids, None, None, None))

    return head, call, batch, projection


def test_a_fraction_of_the_words_is_replaced_by_the_best_guess(called):
    head, call, batch, _ = called
    torch.manual_seed(0)
    filled, mask = head.filled(*batch.values()), batch["attention_mask"]
    special = torch.isin(batch["input_ids"], head.special_ids) | (mask == 0)
    changed = filled != batch["input_ids"]
    assert not (changed & special).any() and 0.2 < changed[~special].float().mean() < 0.55
    logits, replaced, _ = call()
    assert replaced.equal(changed) and logits.shape == (*changed.shape, 2)
    torch.manual_seed(0)
    masked = batch["input_ids"].masked_fill((torch.rand(mask.shape) < 0.5) & ~special, head.mask_id)
    guesses = head._generator[0](input_ids=masked, attention_mask=mask).logits.argmax(-1)
    assert filled[changed].equal(guesses[changed])


def test_the_first_state_of_the_discriminator_is_the_projection(called):
    """Whatever the first token is, and each sentence has its own."""
    head, call, batch, projection = called
    head.fraction = 0.0  # otherwise the generator reads the first token, too
    logits = call()[0]
    other = batch["input_ids"].clone()
    other[:, 0] = 7
    torch.testing.assert_close(call(input_ids=other)[0], logits)
    changed = projection.clone()
    changed[3] += 1
    differs = (call(changed)[0] - logits).abs().amax((1, 2)) > 1e-3
    assert differs.nonzero().flatten().tolist() == [3]


def test_narrower_token_embeddings_are_refused(called):
    """As those of ELECTRA-small and ALBERT."""
    _, call, _, projection = called
    with raises_usage(option="replaced_tokens_weight"):
        call(projection[:, :16])


def test_the_log_has_the_pull_and_the_found_tokens(build):
    trainer = build(objective="diffcse", max_steps=1)
    trainer.train()
    assert 0 <= logged(trainer, "terms/replaced_tokens/found")[0] <= 1
    assert "replaced_tokens" in trainer.gradient_ratios.line()


def test_other_generators_are_refused(bert, tmp_path):
    shutil.copytree(bert, tmp_path / "other")
    larger = BertForMaskedLM.from_pretrained(bert)
    larger.resize_token_embeddings(99)
    larger.save_pretrained(tmp_path / "other")
    for name in (tmp_path / "other", tmp_path / "missing"):
        with raises_usage(option="generator"):
            ReplacedTokens(generator=str(name)).head(model_of(bert))
    with raises_usage(option="replaced_fraction"):
        ReplacedTokens(replaced_fraction=0.0)
