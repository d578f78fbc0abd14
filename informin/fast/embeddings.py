"""Multiply the output of the embedding layer, as views with cutoffs do.

A forward hook reads the factors of the rows from a context variable, which each thread has for its part of a batch. The
layer is that of the encoder with word embeddings, positions and normalization, or the word embeddings themselves where
an encoder has no such layer.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

_factors: ContextVar[list[Tensor]] = ContextVar("factors")  # those of the next call, or none


@contextmanager
def scaled_embeddings(factors: Tensor | None) -> Iterator[None]:
    """Multiply the output (N, L, d) of the embedding layer by factors of this shape, in this thread; None for 1.

    The factors are those of the first call. The encoders of heads, which are called later, encode other rows.
    """
    token = _factors.set([] if factors is None else [factors])
    try:
        yield
    finally:
        _factors.reset(token)


def scale_embeddings(encoder: Any) -> None:
    """Let an encoder multiply the output of its embedding layer by the factors of `scaled_embeddings`."""
    own = getattr(encoder, "embeddings", None)
    table = encoder.get_input_embeddings().weight
    same = [one for one in encoder.modules() if isinstance(one, nn.Embedding) and one.weight is table]  # T5 has two
    for layer in [own] if isinstance(own, nn.Module) else same:
        if _scale not in layer._forward_hooks.values():
            layer.register_forward_hook(_scale)


def _scale(layer: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
    waiting = _factors.get([])
    if not waiting:
        return None
    factors = waiting.pop().to(output.dtype)
    scaled = output[: len(factors)] * factors
    return torch.cat([scaled, output[len(factors) :]])  # rows of no view may follow, such as replayed sentences


def dense_factors(factors: Sequence[Tensor | None], mask: Tensor) -> Tensor | None:
    """Return factors (N, L, d) of padded rows, 1 for padding; None if no row has any.

    Args:
        factors: Those of each row, (l, 1), (1, d) or (l, d) for l tokens; None for 1.
        mask: Attention mask, (N, L), on the CPU.
    """
    width = max((one.shape[1] for one in factors if one is not None), default=0)
    if not width:
        return None
    dense = torch.ones(*mask.shape, width)
    for row, there, own in zip(dense, mask.bool(), factors):
        if own is not None:
            row[there] = own.expand(int(there.sum()), width).to(dense.device)
    return dense


def joined_factors(factors: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor | None:
    """Concatenate the factors of packed rows to (1, T, d). Return None if no row has any.

    Args:
        factors: Those of each row, (1, t, 1) or (1, t, d), also with both widths; None for 1.
        sizes: Number of tokens of each row.

    Example:
        >>> joined_factors([None, torch.full((1, 1, 1), 0.0)], [2, 1]).flatten()
        tensor([1., 1., 0.])
    """
    given = [one for one in factors if one is not None]
    if not given:
        return None
    width = max(one.shape[2] for one in given)
    ones = [given[0].new_ones(1, size, width) if one is None else one for one, size in zip(factors, sizes)]
    return torch.cat([one.expand(-1, -1, width) for one in ones], dim=1)
