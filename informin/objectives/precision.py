"""Losses in float32, also where they are called under autocast."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor


def in_float32(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Turns autocast off for a function of tensors, whose matrix products would else be in bfloat16.

    The function itself converts its inputs, with `x.float()`.
    """

    @functools.wraps(loss)
    def full(*args, **kwargs) -> Tensor:
        device = next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)).device
        with torch.autocast(device.type, enabled=False):
            return loss(*args, **kwargs)

    return full
