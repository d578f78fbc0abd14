"""A step on a GPU must not wait for it: neither the views nor the losses read a number from a tensor.

On a CPU, the operations that would wait are refused, and float64, which the GPU of a Mac (MPS) lacks.
tests/test_gpu.py runs whole steps on a GPU.
"""

from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from informin.distributed import to_device
from informin.training.guide import CachedGuide

WAITING = ("_local_scalar_dense", "nonzero", "unique", "_unique", "masked_select", "is_nonzero", "equal")
OPTIONS = {
    "informin": dict(objective="informin", reconstruction_form="paper"),
    "scd": dict(objective="scd", projector_size=8),
    "micse": dict(objective="micse", queue_size=24),
    "crop": dict(objective="micse", queue_size=24, view="crop"),
    "near": dict(objective="simcse", false_negative_fraction=0.2, false_negative_similarity="model"),
    "guided near": dict(objective="simcse", false_negative_fraction=0.2),
    "guided": dict(objective="guided", guided_weight=1, distillation_weight=1, replay_weight=1, replay_size=5),
}


def refused(*args, **kwargs):
    raise AssertionError("a tensor is read")


class NoWaiting(TorchDispatchMode):
    """Refuses operations whose result has to be read from a GPU, and those in float64."""

    def __enter__(self):
        self._patches = [patch.object(torch.Tensor, name, refused) for name in ("tolist", "numpy", "cpu")]
        for one in self._patches:
            one.start()
        return super().__enter__()

    def __exit__(self, *error):
        for one in self._patches:
            one.stop()
        return super().__exit__(*error)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation._schema.name.removeprefix("aten::")
        is_mask = name in ("index", "index_put_") and any(
            x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1]
        )
        assert not is_mask and not name.startswith(WAITING), name
        result = operation(*args, **(kwargs or {}))
        assert not isinstance(result, torch.Tensor) or result.dtype != torch.float64, name
        return result


@pytest.mark.parametrize("name", OPTIONS)
def test_views_and_losses_read_no_number(build, name):
    trainer = build(eval_strategy="no", padding_free=False, **OPTIONS[name])
    trainer.gradient_ratios.is_on = False
    trainer.loss_watch._checks_each = False  # as on a GPU
    batch = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), 1, trainer.args.device)[0][0]
    trainer.model.train()
    outputs = []

    def forward(**inputs):
        outputs.append(trainer.model(**inputs))
        return outputs[0]

    trainer.compute_loss(forward, batch)
    for step in (1, 2):
        with NoWaiting():
            loss = trainer.compute_loss(lambda **inputs: outputs[0], batch)
            trainer.loss_watch.add(step, loss, trainer._step_values)


def test_the_test_finds_what_waits():
    x = torch.ones(3)
    for waits in (lambda: x.sum().item(), lambda: x.tolist(), lambda: x[x > 0], lambda: x.unique(), lambda: bool(x[0])):
        with pytest.raises(AssertionError), NoWaiting():
            waits()


class Mac(TorchFunctionMode):
    """Notes which copies to MPS do not wait for it. Tensors stay where they are."""

    def __init__(self):
        super().__init__()
        self.waits: list[bool] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        how = kwargs or {}
        if function is torch.Tensor.to and torch.device("mps") in args:
            self.waits.append(not how.get("non_blocking", False))
            return args[0]
        return function(*args, **how)


def test_copies_to_mps_wait(tmp_path):
    """Otherwise, such a copy reads its source later, when other values may stand there (PyTorch issue 189690)."""
    np.save(tmp_path / "guide.npy", np.eye(3, dtype=np.float16))
    guide, mps = CachedGuide(tmp_path / "guide.npy", torch.device("cpu"), torch.arange(3)), torch.device("mps")
    with Mac() as mac:
        found = to_device(torch.arange(3), mps), guide.lookup(np.array([2, 0]), mps)
    assert found[0].tolist() == [0, 1, 2] and found[1].tolist() == [[0, 0, 1], [1, 0, 0]]
    assert mac.waits == [True, True]
