"""The momentum encoder and its queue: initialization and updates, alone and in the Trainer."""

from importlib import import_module

import pytest
import torch
from transformers import TrainerCallback

from informin.objectives.contrast import Contrast, MomentumQueue, contrast, copies
from tests.conftest import raises_usage
from tests.objectives.conftest import ONLY_BERT, head_values, model_of, rows

MICSE = dict(objective="micse", queue_size=24)


def with_queue(folder, size=8, decay=0.9, dropout=0.0, **settings):
    """Return a model with a queue."""
    model = model_of(folder, **settings)
    model.heads["queue"] = MomentumQueue(model, size, decay, dropout)
    return model


def shift(module, by=1.0):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(by)


class Steps(TrainerCallback):
    """Record the model's weights after each step, and the embeddings added to the queue."""

    def __init__(self):
        self.weights, self.keys = [], []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.on_step_end(args, state, control, model)
        head = model.heads["queue"]
        enqueue = head.enqueue
        head.enqueue = lambda keys, ids: self.keys.append(keys) or enqueue(keys, ids)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.weights.append({name: value.clone() for name, value in model.state_dict().items()})


@pytest.fixture
def contrasts(monkeypatch):
    """Record each step's queue and which of its entries are excluded for each anchor."""
    seen = []

    def watch(z1, z2, temperature, queue, queue_false_negatives, negative_weights):
        seen.append((queue.clone(), queue_false_negatives))
        return contrast(z1, z2, temperature, queue, queue_false_negatives, negative_weights)

    monkeypatch.setattr(import_module("informin.objectives.contrast"), "contrast", watch)
    return seen


# The momentum encoder


def test_momentum_encoder_starts_as_a_copy_with_an_empty_queue(encoder):
    model = model_of(encoder)
    shift(model.base_model)
    before = torch.get_rng_state()
    head = MomentumQueue(model, 5, 0.995, 0.3)
    assert torch.equal(torch.get_rng_state(), before), "the steps of a run do not depend on whether it has one"
    slow, fast = head.encoder.state_dict(), model.base_model.state_dict()
    assert slow.keys() == fast.keys()
    assert [name for name in fast if not torch.equal(slow[name], fast[name])] == []
    assert all(slow[name].data_ptr() != fast[name].data_ptr() for name in fast)
    assert head.embeddings.shape == (5, 32) and not head.embeddings.any()
    assert head.ids.tolist() == [0] * 5 and head.ids.dtype == torch.int64


def test_momentum_encoder_moves_by_the_decay(encoder):
    """He et al. (2020), eq. 2. The trained encoder does not change."""
    model = with_queue(encoder, decay=0.9)
    slow, fast = dict(model.heads["queue"].encoder.named_parameters()), dict(model.base_model.named_parameters())
    shift(model.base_model)
    start, target = ({name: p.detach().clone() for name, p in part.items()} for part in (slow, fast))
    for share in (0.9, 0.81):
        model.heads["queue"].after_step(model)
        for name, parameter in slow.items():
            expected = share * start[name].double() + (1 - share) * target[name].double()
            torch.testing.assert_close(parameter, expected.float(), rtol=1e-5, atol=1e-6, msg=name)
            assert torch.equal(fast[name], target[name]) and not parameter.requires_grad


@ONLY_BERT
def test_momentum_encoder_follows_each_optimizer_step(build):
    """Compare with a loop over the encoder's weights, also with gradient accumulation."""
    trainer = build([steps := Steps()], momentum_decay=0.9, gradient_accumulation_steps=2, **MICSE)
    trainer.train()
    assert len(steps.weights) == 4 and len(steps.keys) == 6
    prefix = trainer.model.base_model_prefix
    names = [name for name, _ in trainer.model.base_model.named_parameters()]
    for name in names:
        expected = steps.weights[0][f"{prefix}.{name}"].double().numpy()
        for after in steps.weights[1:]:
            expected = 0.9 * expected + (1 - 0.9) * after[f"{prefix}.{name}"].double().numpy()
        slow = steps.weights[-1][f"heads.queue.encoder.{name}"]
        torch.testing.assert_close(slow, torch.from_numpy(expected).float(), rtol=1e-4, atol=1e-6, msg=name)
        assert not torch.equal(slow, steps.weights[-1][f"{prefix}.{name}"]), name


@ONLY_BERT
def test_optimizer_has_no_weights_of_the_momentum_encoder(build):
    trainer = build(**MICSE)
    slow = {id(parameter) for parameter in trainer.model.heads["queue"].parameters()}
    optimized = {id(p) for group in trainer.create_optimizer().param_groups for p in group["params"]}
    assert slow and optimized == {id(p) for p in trainer.model.parameters()} - slow


@ONLY_BERT
def test_momentum_encoder_has_its_own_dropout(build, encoder):
    """It is independent of the views' rates, and off in evaluation."""
    trainer = build(momentum_dropout=0.35, view_dropout=[0.1, 0.2], **MICSE)
    model, head = trainer.model, trainer.model.heads["queue"]
    slow, fast = (
        [module for module in part.modules() if isinstance(module, torch.nn.Dropout)]
        for part in (head.encoder, model.base_model)
    )
    assert {(type(module), module.p) for module in slow} == {(torch.nn.Dropout, 0.35)}
    assert {module.rates for module in fast} == {(0.1, 0.2)} and len(slow) == len(fast)
    again = MomentumQueue(model, 5, 0.9, 0.1)  # also if the model's attention was replaced
    assert head.encoder.config._attn_implementation == again.encoder.config._attn_implementation == "sdpa"
    assert any(module.keeps_map for module in model.base_model.modules() if hasattr(module, "keeps_map"))
    assert not any(getattr(module, "keeps_map", False) for module in head.encoder.modules())
    assert model.config.hidden_dropout_prob == model.config.attention_probs_dropout_prob == 0.1
    batch, keys = rows(encoder), []
    for _ in range(2):
        head_values(model, batch)
        keys.append(head.embeddings[:6].clone())
    assert not torch.equal(*keys)


@pytest.mark.parametrize("projection_head", ["mlp", "none"])
def test_keys_use_the_projection_head_on_the_first_view(encoder, projection_head):
    model, batch = with_queue(encoder, projection_head=projection_head), rows(encoder)
    head = model.heads["queue"]
    with torch.no_grad():
        for parameter in head.encoder.parameters():  # no longer a copy of the encoder
            parameter.mul_(1.5)
    batch["input_ids"][6:] = batch["input_ids"][6:].roll(1, 0)
    head_values(model, batch)
    cls = head.encoder(**{name: value[:6] for name, value in batch.items()}).last_hidden_state[:, 0]
    keys = torch.tanh(model.mlp.dense(cls)) if projection_head == "mlp" else cls
    torch.testing.assert_close(head.embeddings[:6], keys)
    assert not head.embeddings.requires_grad and not head.embeddings[6:].any()
    assert not any("mlp" in name for name in head.state_dict())


# The queue


def test_batch_sees_the_queue_before_it_is_added(encoder):
    """The returned tensors do not change when the batch is added."""
    model, batch = with_queue(encoder, size=14), rows(encoder)
    head = model.heads["queue"]
    first, before = head_values(model, batch, ids=range(1, 7))["queue"]
    assert first.shape == (14, 32) and not first.any() and before.shape == (14,) and not before.any()
    keys = head.embeddings[:6].clone()
    second, ids = head_values(model, batch, ids=[3, 9, 1, 1, 8, 7])["queue"]
    assert torch.equal(second[:6], keys) and not second[6:].any() and not first.any()
    assert ids.tolist() == [1, 2, 3, 4, 5, 6, *[0] * 8] and not before.any()
    again = copies(torch.tensor([3, 9, 1, 1, 8, 7]), ids)
    assert again.nonzero().tolist() == [[0, 2], [2, 0], [3, 0]]
    assert head.ids.tolist() == [3, 9, 1, 1, 8, 7, 1, 2, 3, 4, 5, 6, 0, 0]
    assert torch.equal(head.embeddings[6:12], keys)


def test_queue_gets_the_batches_of_all_processes(encoder):
    model, batch = with_queue(encoder, size=14), rows(encoder)
    _, ids = head_values(model, batch, ids=range(1, 7), gather=lambda x: torch.cat([x, 10 * x]))["queue"]
    head = model.heads["queue"]
    assert ids.shape == (14,)
    assert head.ids.tolist() == [1, 2, 3, 4, 5, 6, 10, 20, 30, 40, 50, 60, 0, 0]
    torch.testing.assert_close(head.embeddings[6:12], 10 * head.embeddings[:6])


def test_queue_drops_the_oldest_keys(encoder):
    head = with_queue(encoder, size=5).heads["queue"]
    keys, ids = torch.arange(1.0, 13.0)[:, None].expand(12, 32), torch.arange(101, 113)
    for group, expected in (((0, 2), [1, 2, 0, 0, 0]), ((2, 4), [3, 4, 1, 2, 0]), ((4, 6), [5, 6, 3, 4, 1])):
        head.enqueue(keys[slice(*group)].bfloat16(), ids[slice(*group)])
        assert head.embeddings[:, 7].tolist() == expected
        assert head.ids.tolist() == [100 + key if key else 0 for key in expected]
    head.enqueue(keys[5:], ids[5:])
    assert head.embeddings[:, 31].tolist() == [6, 7, 8, 9, 10]
    assert head.embeddings.shape == (5, 32) and head.embeddings.dtype == torch.float32


@ONLY_BERT
def test_contrast_uses_keys_of_earlier_batches(build, contrasts):
    """Keys of the batch itself are not used: its second views are candidates already."""
    build([steps := Steps()], **MICSE).train()
    assert len(contrasts) == len(steps.keys) == 3
    for step, (queue, _) in enumerate(contrasts):
        earlier = [key for keys in reversed(steps.keys[:step]) for key in keys]
        assert torch.equal(queue, torch.stack([*earlier, *torch.zeros(24, 32)])[:24])


@ONLY_BERT
def test_queue_masks_own_sentence_in_the_second_epoch(build, contrasts):
    """With 32 sentences and a queue of 32, every anchor is in the queue once when the second epoch begins."""
    build(**(MICSE | dict(queue_size=32)), sentences=32, max_steps=4).train()
    owns = [own for _, own in contrasts]
    assert [own.shape for own in owns] == [(16, 32)] * 4
    assert [own.sum(1).tolist() for own in owns[:3]] == [[0] * 16, [0] * 16, [1] * 16]
    assert owns[3].sum(1).max() == 1


# Mistakes


def test_queue_larger_than_the_data_is_rejected():
    term = Contrast(queue_size=48)
    term.check_sentences(48)
    with raises_usage(option="queue_size"):
        term.check_sentences(47)
