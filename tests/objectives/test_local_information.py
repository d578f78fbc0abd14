"""Local information: a loop with the signs of the authors' code, closed forms, and what does not matter."""

import math

import pytest
import torch
from sentence_transformers.models import Dense

from informin.objectives import LocalInformation
from informin.objectives.local_information import local_information
from tests.conftest import make_sentences, raises_usage, save_sentence_transformer
from tests.objectives.conftest import first_batch, without_dropout
from trainer_informin import InforMinTrainer, InforMinTrainingArguments


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]])
    return torch.randn(3, 4, 5, generator=generator), torch.randn(3, 5, generator=generator), mask


def test_the_loss_is_a_loop_over_pairs_of_tokens_and_sentences(batch):
    features, h, mask = batch
    positive, negative = [], []
    for i in range(3):
        for t in range(int(mask[i].sum())):
            for k in range(3):
                score = float(features[i, t] @ h[k])
                if i == k:
                    positive.append(math.log(2) - math.log1p(math.exp(-score)))
                else:
                    negative.append(math.log1p(math.exp(-score)) + score - math.log(2))
    expected = sum(negative) / len(negative) - sum(positive) / len(positive)
    assert local_information(features, h, mask).item() == pytest.approx(expected, rel=1e-5)
    features[mask == 0] = 1e3
    assert local_information(features, h, mask).item() == pytest.approx(expected, rel=1e-5), "padding"
    kept = torch.tensor([[False, True, False], [True, False, True], [False, True, False]])  # 0 and 2 are copies
    expected = (sum(negative) - sum(part for i, part in pairs_of(features, h, mask))) / (16 - 7)
    expected -= sum(positive) / len(positive)
    assert local_information(features, h, mask, kept).item() == pytest.approx(expected, rel=1e-5)


def pairs_of(features, h, mask):
    """Return the losses of the pairs of sentences 0 and 2."""
    scores = [(i, float(features[i, t] @ h[2 - i])) for i in (0, 2) for t in range(int(mask[i].sum()))]
    return [(i, math.log1p(math.exp(-score)) + score - math.log(2)) for i, score in scores]


def test_independent_embeddings_have_loss_0_and_the_least_is_minus_2_log_2(batch):
    features, h, mask = batch
    assert local_information(features, 0 * h, mask).item() == pytest.approx(0, abs=1e-6)
    own = 1e3 * (2 * torch.eye(3) - 1)  # all scores of other sentences are far below 0
    assert local_information(torch.eye(3)[:, None], own, mask[:, :1]).item() == pytest.approx(-2 * math.log(2))


def test_features_are_convolutions_of_the_hidden_states(build):
    trainer = build(objective="isbert")
    rows = first_batch(trainer)
    model = without_dropout(trainer.model)
    head = model.heads["local_information"]
    assert trainer.objective.encodes_once and len(rows["input_ids"]) == 16
    outputs = trainer.model(**{name: rows[name] for name in ("input_ids", "attention_mask")})
    mask = rows["attention_mask"]
    states = (outputs.last_hidden_state * mask[..., None])[0]  # (L, d)
    inputs = {"sentence_ids": rows["sentence_ids"], "gather": lambda x: x, "number_of_views": 1}
    names = ("input_ids", "attention_mask", "split_batch")
    features = trainer.model(**{name: rows[name] for name in names if name in rows}, views=inputs).heads
    weight, bias = head.layers[1].weight, head.layers[1].bias  # of 3 tokens
    padded = torch.nn.functional.pad(states, (0, 0, 1, 1))
    place = int(mask[0].sum()) - 2
    expected = torch.einsum("odk,kd->o", weight, padded[place : place + 3]) + bias
    first = len(head.layers[0].bias)
    found = features["local_information"][0][0, place, first : first + len(bias)]
    torch.testing.assert_close(found, expected.relu(), rtol=1e-4, atol=1e-5)


def test_embeddings_may_have_another_dimension_than_the_hidden_states(bert, tmp_path):
    model = save_sentence_transformer(tmp_path / "model", bert, Dense(32, 20), normalize=False)
    args = InforMinTrainingArguments(
        str(tmp_path / "run"), per_device_train_batch_size=16, eval_strategy="no", bf16=False, use_cpu=True
    )
    trainer = InforMinTrainer(str(model), args, train_dataset=make_sentences(16), objective="isbert")
    trainer.compute_loss(trainer.model, first_batch(trainer)).backward()
    widths = [layer.weight.shape[:2] for layer in trainer.model.heads["local_information"].layers]
    assert widths == [(7, 32), (7, 32), (6, 32)]


@pytest.mark.parametrize("sizes", [[2], [], [1, -1]])
def test_sizes_are_odd(sizes):
    with raises_usage(option="ngram_sizes"):
        LocalInformation(ngram_sizes=sizes)
