"""Gradient caching: the same gradient as the full batch, in the memory of one chunk."""

from functools import partial

import pytest
import torch
from torch import nn

from informin.fast import forward
from informin.training.plain import forward as forward_of
from informin.views.encoder import ViewDropout
from tests.conftest import FOUR_STEPS, how_to_train, make_sentences, raises_usage
from trainer_informin import InforMinTrainer

# tests/fast/test_plain.py compares chunks of packed rows with the plain path, for all objectives.
OBJECTIVES = {
    "mlm": dict(objective="informin", mlm_weight=0.1),
    "scd": dict(objective="scd", projector_size=32),
    "scd, mlm": dict(objective="scd", projector_size=32, mlm_weight=0.1),
    "own near": dict(
        **dict(objective="simcse", false_negative_fraction=0.2, false_negative_weight=0.5),
        false_negative_similarity="model",
    ),
    "guided": dict(objective="guided", guided_weight=1, replay_weight=1, replay_size=5),
}


def trainer_of(folder, output_dir, **options) -> InforMinTrainer:
    how = FOUR_STEPS | dict(max_steps=1, eval_strategy="no", save_strategy="no", report_to=[], bf16=False) | options
    return InforMinTrainer(str(folder), train_dataset=make_sentences(96), **how_to_train(str(output_dir), **how))


def without_dropout(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, ViewDropout):
            module.rates = (0.0,) * len(module.rates)


def one_step(run: InforMinTrainer, dropout: bool) -> tuple[float, dict[str, torch.Tensor]]:
    if not dropout:
        without_dropout(run.model)
    batch = run.get_batch_samples(iter(run.get_train_dataloader()), 1, run.args.device)[0][0]
    run.model.train()
    torch.manual_seed(3)
    with run.compute_loss_context_manager():
        loss = run.compute_loss(run.model, batch)
    loss.backward()
    return loss.item(), {name: x.grad for name, x in run.model.named_parameters() if x.grad is not None}


def assert_same(one, other, tolerance=1e-5) -> None:
    assert one[0] == pytest.approx(other[0], abs=tolerance) and one[1].keys() == other[1].keys()
    scale = max(gradient.abs().max() for gradient in one[1].values()).item()
    for name, gradient in one[1].items():
        torch.testing.assert_close(gradient, other[1][name], atol=tolerance * scale, rtol=1e-3, msg=name)


@pytest.mark.parametrize("name, packed", [("own near", True), ("mlm", False), ("scd, mlm", False), ("guided", False)])
def test_gradient_equals_that_of_the_full_batch(bert, tmp_path, name, packed):
    """Chunks of 7 rows do not divide the batch evenly."""
    options = OBJECTIVES[name] | ({} if packed else dict(padding_free=False))
    whole, cached = (
        one_step(trainer_of(bert, tmp_path / str(chunk), gradient_cache_chunk_size=chunk, **options), dropout=False)
        for chunk in (None, 7)
    )
    assert_same(cached, whole)


@pytest.mark.parametrize(
    "name, extra",
    [("mlm", {}), ("scd", dict(bf16=True)), ("guided", dict(gradient_checkpointing=True))],
)
def test_recomputation_uses_the_same_dropout_masks(bert, tmp_path, monkeypatch, name, extra):
    """Compare with the same chunks without discarding activations."""
    options = OBJECTIVES[name] | extra | dict(gradient_cache_chunk_size=8)
    cached = one_step(trainer_of(bert, tmp_path / "cached", **options), dropout=True)
    monkeypatch.setattr(forward, "checkpoint", lambda read, *args, use_reentrant: read(*args))
    kept = one_step(trainer_of(bert, tmp_path / "kept", **options), dropout=True)
    assert_same(cached, kept)


@pytest.mark.parametrize("packed", [True, False])
def test_each_view_has_its_dropout_rate_in_every_chunk(bert, tmp_path, packed):
    options = dict(view_dropout=[0.0, 0.5], gradient_cache_chunk_size=7, padding_free=packed)
    run = trainer_of(bert, tmp_path, **OBJECTIVES["scd"] | options)
    rows = run.get_batch_samples(iter(run.get_train_dataloader()), 1, run.args.device)[0][0]
    run.model.train()
    first, second = forward_of(run.model, rows).pooler_output.chunk(2)
    without_dropout(run.model)
    for view, is_equal in ((first, True), (second, False)):
        without = forward_of(run.model, rows).pooler_output.chunk(2)[0 if view is first else 1]
        assert ((view - without).abs().amax(1) < 1e-4).tolist() == [is_equal] * len(view)


def test_recomputation_restores_the_random_state_of_the_device(bert, tmp_path, monkeypatch):
    """`checkpoint` does it for the devices of its tensors. On a GPU, tests/test_gpu.py compares the masks."""
    devices = []

    def checkpoint(read, *args, use_reentrant):
        devices.append({x.device for x in args if isinstance(x, torch.Tensor)})
        return read(*args)

    monkeypatch.setattr(forward, "checkpoint", checkpoint)
    run = trainer_of(bert, tmp_path, objective="simcse", gradient_cache_chunk_size=8)
    one_step(run, dropout=True)
    assert devices == [{run.args.device}] * 4


def test_forward_passes_hold_one_chunk(bert, tmp_path):
    """Count the rows of each forward pass, including recomputation."""
    held = {None: [], 8: []}
    for chunk, rows in held.items():
        run = trainer_of(bert, tmp_path / str(chunk), objective="simcse", gradient_cache_chunk_size=chunk)
        count = partial(lambda rows, *call: rows.append(call[2].shape[:2].numel()), rows)
        run.model.base_model.embeddings.register_forward_hook(count)
        one_step(run, dropout=True)
    assert len(held[None]) == 1 and len(held[8]) == 2 * 4  # of 32 rows, each read twice
    assert max(held[8]) < held[None][0] / 3


def test_chunk_size_is_recorded(bert, tmp_path):
    run = trainer_of(bert, tmp_path / "run", objective="simcse", gradient_cache_chunk_size=8, max_steps=3)
    run.train()
    assert run.record().options["gradient_cache_chunk_size"] == 8


def test_attention_maps_are_rejected_with_gradient_caching(bert, tmp_path):
    with raises_usage(option="gradient_cache_chunk_size"):
        trainer_of(bert, tmp_path, objective="simcse", attention_mi_weight=0.1, gradient_cache_chunk_size=8)
