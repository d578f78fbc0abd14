"""Compute losses in float32 even under autocast."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor


def in_float32(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorate a function of tensors so that it runs without autocast.

    Under autocast its matrix products would run in bfloat16. The function itself must convert its inputs with
    `x.float()`.
    """

    @functools.wraps(loss)
    def full(*args, **kwargs) -> Tensor:
        device = next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)).device
        with torch.autocast(device.type, enabled=False):
            return loss(*args, **kwargs)

    return full
