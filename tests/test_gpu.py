"""Embedding and training on a GPU. Without one, a CPU is compared with itself where a test needs no graphs."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from informin.fast import forward
from informin.model.embedding import encode_in_shares
from informin.model.open import load_model
from tests.conftest import FOUR_STEPS, how_to_train, make_sentences, save_bert
from trainer_informin import InforMinTrainer

pytestmark = pytest.mark.gpu
HAS_GPU = torch.cuda.is_available()
DEVICE, PRECISIONS = ("cuda", ["bf16", "fp16"]) if HAS_GPU else ("cpu", ["bf16"])
ON_GPU = pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
QUEUE = dict(queue_size=16, momentum_dropout=0.0)  # whose encoder is replayed, too
QUEUE_OF = {"simcse": QUEUE, "micse": QUEUE}
STILL = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def trainer_of(model, output_dir, **options) -> InforMinTrainer:
    how = FOUR_STEPS | dict(objective="simcse", eval_strategy="no", save_strategy="no", report_to="none", use_cpu=False)
    data = make_sentences(96)
    return InforMinTrainer(model, train_dataset=data, **how_to_train(str(output_dir), **how | options))


def first_batch(run) -> dict:
    run.model.train()
    return run.get_batch_samples(iter(run.get_train_dataloader()), 1, run.args.device)[0][0]


def gradients(run, batch) -> dict[str, torch.Tensor]:
    run.model.zero_grad()
    with run.compute_loss_context_manager():
        run.compute_loss(run.model, batch).backward()
    return {name: x.grad.clone() for name, x in run.model.named_parameters() if x.grad is not None}


def test_embeddings_equal_those_of_a_cpu(st_mean):
    texts = make_sentences(200)
    cpu, gpu = (encode_in_shares(load_model(st_mean, device=device), texts, title=None) for device in ("cpu", DEVICE))
    np.testing.assert_allclose(gpu, cpu, atol=1e-5)


def test_embeddings_in_bf16_are_close(st_mean):
    """On a GPU they are packed."""
    texts = make_sentences(200)
    exact, half = (
        encode_in_shares(load_model(st_mean, device=DEVICE, bf16=bf16), texts, title=None) for bf16 in (False, True)
    )
    assert 0 < np.abs(exact - half).max() < 0.05


@pytest.mark.parametrize("in_memory, padding_free", [(False, False), (False, True), (True, False)])
def test_a_step_has_the_loss_of_a_cpu(tmp_path, in_memory, padding_free):
    """Without dropout, with the same cropped views."""
    folder = str(save_bert(tmp_path / "still", **STILL))
    how = dict(view="crop", max_steps=1, logging_steps=1, padding_free=padding_free, projection_head="none")
    losses = []
    for use_cpu in (True, False):
        model = load_model(folder, pooler="mean", device="cpu") if in_memory else folder
        given = SentenceTransformer(modules=list(model), device="cpu") if in_memory else model
        pooler = {} if in_memory else dict(pooler="mean")
        run = trainer_of(given, tmp_path / str(use_cpu), use_cpu=use_cpu, **how, **pooler)
        run.train()
        losses.append(next(entry["loss"] for entry in run.state.log_history if "loss" in entry))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_resuming_gives_the_same_weights(bert, tmp_path, precision):
    """On a GPU, graphs are captured again."""
    how = dict(objective="informin", save_strategy="steps", save_steps=2, bf16=False)
    how |= {precision: True}
    whole = trainer_of(str(bert), tmp_path / "run", **how)
    whole.train()
    again = trainer_of(str(bert), tmp_path / "again", **how)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    expected = whole.model.state_dict()
    assert [name for name, x in again.model.state_dict().items() if not torch.equal(x, expected[name])] == []


@pytest.mark.parametrize("padding_free", [True, False])
def test_gradient_caching_uses_the_same_dropout_masks(bert, tmp_path, monkeypatch, padding_free):
    """Compare with the same chunks without discarding activations."""
    found = []
    for checkpoint in (forward.checkpoint, lambda compute, *args, use_reentrant: compute(*args)):
        monkeypatch.setattr(forward, "checkpoint", checkpoint)
        how = dict(gradient_cache_chunk_size=8, padding_free=padding_free)
        run = trainer_of(str(bert), tmp_path / str(len(found)), **how)
        batch = first_batch(run)
        torch.manual_seed(3)
        found.append(gradients(run, batch))
    scale = max(x.abs().max() for x in found[1].values()).item()
    for name, expected in found[1].items():
        torch.testing.assert_close(found[0][name], expected, atol=1e-5 * scale, rtol=1e-3)


def test_packed_rows_in_float32_give_the_gradients_of_padded_ones(tmp_path):
    """In several batches of one size: the lengths of their texts differ."""
    folder = str(save_bert(tmp_path / "still", **STILL))
    found = []
    for padding_free in (True, False):
        run = trainer_of(folder, tmp_path / str(padding_free), view="crop", padding_free=padding_free)
        run.model.train()
        batches = iter(run.get_train_dataloader())
        rows = [run.get_batch_samples(batches, 1, run.args.device)[0][0] for _ in range(3)]
        found.append([gradients(run, row) for row in rows])
    for packed, padded in zip(*found):
        scale = max(x.abs().max() for x in padded.values()).item()
        for name, expected in padded.items():
            torch.testing.assert_close(packed[name], expected, atol=1e-4 * scale, rtol=1e-3)


@ON_GPU
@pytest.mark.parametrize(
    "objective, bf16", [("simcse", False), ("informin", True), ("informin", False), ("micse", False)]
)
def test_graphs_give_the_gradients_of_the_eager_step_without_dropout(tmp_path, objective, bf16):
    """In bfloat16, rows of other lengths are rounded in other ways, and a queue adds to the difference."""
    folder = str(save_bert(tmp_path / "still", **STILL))
    found = []
    for graphs in (True, False):
        how = dict(view="crop", bf16=bf16, cuda_graphs=graphs, objective=objective, **QUEUE_OF.get(objective, {}))
        run = trainer_of(folder, tmp_path / str(graphs), **how)
        batch = first_batch(run)
        assert (batch["split_batch"].parts[0].fixed is not None) == graphs
        gradients(run, batch)  # captures
        found.append(gradients(run, batch))
    scale = max(x.abs().max() for x in found[1].values()).item()
    absolute, relative = (0.02 * scale, 0.05) if bf16 else (1e-4 * scale, 1e-3)
    assert found[0].keys() == found[1].keys()
    for name, expected in found[1].items():
        torch.testing.assert_close(found[0][name], expected, atol=absolute, rtol=relative)


@ON_GPU
def test_a_second_backward_pass_gives_the_same_gradients(bert, tmp_path):
    """With the dropout masks of the forward pass, whose activations the first backward pass overwrote."""
    run = trainer_of(str(bert), tmp_path, bf16=True)
    batch = first_batch(run)
    weights = [x for x in run.model.parameters() if x.requires_grad]
    with run.compute_loss_context_manager():
        loss = run.compute_loss(run.model, batch)
    state = torch.cuda.get_rng_state()
    first, second = (torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True) for _ in range(2))
    assert torch.equal(state, torch.cuda.get_rng_state())
    for x, y in zip(first, second):
        assert (x is None) == (y is None)
        if x is not None:
            torch.testing.assert_close(x, y)


@ON_GPU
def test_dropout_differs_between_replays(bert, tmp_path):
    run = trainer_of(str(bert), tmp_path, bf16=True)
    batch = first_batch(run)
    with run.compute_loss_context_manager():
        first, second = (run.compute_loss(run.model, batch, return_outputs=True)[1] for _ in range(2))
    assert not torch.equal(first.pooler_output, second.pooler_output)


@ON_GPU
@pytest.mark.parametrize("objective", ["simcse", "informin", "scd", "micse"])
def test_a_step_does_not_wait_for_the_gpu(bert, tmp_path, objective):
    run = trainer_of(str(bert), tmp_path, bf16=True, objective=objective, **QUEUE_OF.get(objective, {}))
    run.gradient_ratios.is_on = False
    batch = first_batch(run)
    gradients(run, batch)  # captures, and fills caches
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with run.compute_loss_context_manager():
            run.compute_loss(run.model, batch).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
