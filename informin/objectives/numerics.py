"""Numerics of losses: float32 under autocast, and blocks of anchors, so that memory grows linearly with the batch."""

import functools
from collections.abc import Callable
from itertools import repeat

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

ANCHORS = 512  # per block


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


def mean_over_anchors(loss_of: Callable[..., Tensor], anchors: Tensor, *rows: Tensor | None) -> Tensor:
    """Return the mean loss over N anchors, computed in blocks of `ANCHORS` anchors.

    With more than one block, the backward pass recomputes the similarities instead of storing them.

    Args:
        loss_of: Function from the rows of one block to the mean loss of its anchors. Must not use random numbers.
        anchors: Anchors, (N, ...).
        rows: Further tensors with N rows, split like the anchors. None is passed on to every block.

    Returns:
        The mean, a scalar.
    """
    number = len(anchors)
    if number <= ANCHORS:
        return loss_of(anchors, *rows)
    parts = (repeat(None) if x is None else x.split(ANCHORS) for x in (anchors, *rows))
    return sum(  # pyrefly: ignore[bad-return]  # 0 only without anchors
        checkpoint(loss_of, *block, use_reentrant=False, preserve_rng_state=False) * (len(block[0]) / number)
        for block in zip(*parts)
    )
