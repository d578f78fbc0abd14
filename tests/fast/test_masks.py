"""On a CPU, NumPy draws the dropout masks of every training path, and layers that are computed again get the same."""

import shutil

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from informin.fast.masks import NumpyDropout
from tests.fast.test_cpu_threads import cores
from tests.fast.test_plain import OBJECTIVES, trainer_of

PATHS = {
    "packed": {},
    "packed, 2 parts": {},
    "padded": dict(padding_free=False),
    "chunks": dict(gradient_cache_chunk_size=8),
    "padded chunks": dict(gradient_cache_chunk_size=8, padding_free=False),
    "checkpointing": dict(gradient_checkpointing=True),
    "reentrant": dict(gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": True}),
    "scd": dict(objective="scd", projector_size=32, view_dropout=[0.1, 0.3]),
    "micse": OBJECTIVES["micse"],
    "micse, checkpointing": OBJECTIVES["micse"] | dict(gradient_checkpointing=True),
    "ct": OBJECTIVES["ct"] | dict(gradient_checkpointing=True),
}


class DrawnByPyTorch(TorchDispatchMode):
    """Counts the random masks that PyTorch draws."""

    def __init__(self):
        super().__init__()
        self.masks = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.masks += any(name in func._schema.name for name in ("bernoulli", "dropout"))
        return func(*args, **(kwargs or {}))


def step(run) -> dict[str, torch.Tensor]:
    """Return the gradients of the first batch."""
    run.model.train()
    run.current_gradient_accumulation_steps = 1
    if run.args.gradient_checkpointing:
        run.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=run.args.gradient_checkpointing_kwargs)
    (batch,) = run.get_batch_samples(iter(run.get_train_dataloader()), 1, run.args.device)[0]
    torch.manual_seed(0)
    run.training_step(run.model, batch)
    return {name: x.grad for name, x in run.model.named_parameters() if x.grad is not None}


@pytest.fixture(scope="module")
def trained_by_plain_path(bert, tmp_path_factory) -> dict[str, set[str]]:
    """Names of the weights that have a gradient on the plain path, where PyTorch draws masks, by fast path."""
    found = {}
    for path in ("packed", "scd"):
        run = trainer_of(bert, tmp_path_factory.mktemp("plain"), **PATHS[path], fast=False)
        with DrawnByPyTorch() as drawn:
            found[path] = step(run).keys()
        assert drawn.masks > 0, "or this is no dropout"
    return found


@pytest.mark.parametrize("path", PATHS)
def test_pytorch_draws_no_mask(bert, tmp_path, trained_by_plain_path, path):
    with cores(2 if "parts" in path else 1):
        run = trainer_of(bert, tmp_path, **PATHS[path])
        with DrawnByPyTorch() as drawn:
            first = step(run)
        assert drawn.masks == 0
    assert (
        "micse" in path or path == "ct" or first.keys() == trained_by_plain_path["scd" if path == "scd" else "packed"]
    )


@pytest.mark.parametrize("path", ["checkpointing", "reentrant", "micse, checkpointing", "ct", "scd"])
def test_checkpointing_draws_the_same_masks_again(bert, tmp_path, path):
    """The gradient is that of the activations that were dropped in the forward pass."""
    options = PATHS[path] | dict(padding_free=False)
    again = step(trainer_of(bert, tmp_path, **options | dict(gradient_checkpointing=True)))
    kept = step(trainer_of(bert, tmp_path, **options | dict(gradient_checkpointing=False)))
    assert again.keys() == kept.keys()
    scale = max(x.abs().max() for x in kept.values()).item()
    for name, gradient in again.items():
        torch.testing.assert_close(gradient, kept[name], atol=1e-5 * scale, rtol=1e-4, msg=name)


@pytest.mark.parametrize("path", ["padded", "scd"])
def test_a_resumed_run_draws_the_same_masks(bert, tmp_path, path):
    saves = PATHS[path] | dict(save_strategy="steps", save_steps=1, save_total_limit=8)
    whole = trainer_of(bert, tmp_path / "whole", **saves)
    whole.train()
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "run" / "checkpoint-2")
    resumed = trainer_of(bert, tmp_path / "run", **saves)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    weights = resumed.model.state_dict()
    assert all(x.equal(weights[name]) for name, x in whole.model.state_dict().items())


def test_dropout_in_place_changes_its_input():
    x = torch.ones(1000)
    with NumpyDropout(seed=1):
        assert torch.nn.functional.dropout(x, 0.5, inplace=True) is x
    assert 300 < (x == 0).sum() < 700


def test_a_query_that_sees_no_key_gives_no_nan():
    """Such as padding on the left of a decoder."""
    seen = torch.ones(3, 3, dtype=torch.bool).tril(-1)
    states = torch.randn(1, 1, 3, 4, requires_grad=True)
    with NumpyDropout(seed=1):
        out = torch.nn.functional.scaled_dot_product_attention(states, states, states, attn_mask=seen, dropout_p=0.1)
    out[..., 1:, :].sum().backward()
    assert out.isfinite().all() and states.grad.isfinite().all()
