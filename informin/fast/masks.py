"""Dropout in training on a CPU, with masks from NumPy.

PyTorch draws one number after the other: 6% of a step of all-MiniLM-L6-v2 on packed rows, and 19 to 30% on padded ones.
Here NumPy draws 16 bits for each number of a mask.

Each mask has a seed. In the thread of a step, PyTorch's generator draws it, so that what restores the state of this
generator restores the masks: a resumed run, gradient caching, and gradient checkpointing, which computes layers again
in the backward pass. Threads that compute parts of a batch share that generator, so each gets its own.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode


class NumpyDropout(TorchFunctionMode):
    """Inside this context, `dropout` and the dropout of attention draw their masks by NumPy.

    PyTorch leaves the context during a backward pass; see `mask_recomputed_layers`.

    Args:
        seed: Seed of all masks. None lets PyTorch's generator draw a seed for each mask.
    """

    def __init__(self, seed: int | None = None):
        super().__init__()
        self._generator = None if seed is None else generator_of(seed)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is dropout:
            return self._dropout(*args, **kwargs)
        if func is scaled_dot_product_attention and kwargs.get("dropout_p"):
            return self._attention(*args, **kwargs)
        return func(*args, **kwargs)

    def _dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return x
        generator = self._generator or generator_of(int(torch.randint(2**62, ())))
        mask = keep_mask(x, p, generator)
        return x.mul_(mask) if inplace else x * mask

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
        scores = query * (query.shape[-1] ** -0.5 if scale is None else scale) @ key.transpose(-2, -1)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min)  # not NaN without any key
        elif attn_mask is not None:
            scores = scores + attn_mask
        return self._dropout(scores.softmax(-1), dropout_p) @ value


class MaskedCheckpoint:
    """A function that checkpoints a layer, in whose forward passes, the repeated one too, NumPy draws the masks."""

    def __init__(self, checkpoint: Callable[..., Any]):
        self._checkpoint = checkpoint

    def __call__(self, layer: Callable[..., Any], *states: Any, **options: Any) -> Any:
        def masked(*inputs: Any, **others: Any) -> Any:
            with NumpyDropout():
                return layer(*inputs, **others)

        return self._checkpoint(masked, *states, **options)


def mask_recomputed_layers(encoder: nn.Module) -> None:
    """Let layers under gradient checkpointing of transformers, if it is on, draw their masks by NumPy both times."""
    modules: Any = encoder.modules()
    for module in modules:
        checkpoint = vars(module).get("_gradient_checkpointing_func")
        if checkpoint is not None and not isinstance(checkpoint, MaskedCheckpoint):
            module._gradient_checkpointing_func = MaskedCheckpoint(checkpoint)


def generator_of(seed: int) -> np.random.Generator:
    """Return a generator of NumPy's fastest kind."""
    return np.random.Generator(np.random.SFC64(seed))


def keep_mask(x: Tensor, rate: float, generator: np.random.Generator) -> Tensor:
    """Return a random mask like x, 0 with probability `rate`, rounded to 1/65,536, and else what keeps the mean."""
    kept = round((1 - rate) * 2**16)
    bits = generator.integers(2**64, size=-(-x.numel() // 4), dtype=np.uint64).view(np.uint16)[: x.numel()]
    chosen = torch.from_numpy((bits < kept).view(np.int8))  # an int8 becomes a float faster than a bool
    return chosen.to(x.dtype).mul_(2**16 / max(kept, 1)).view(x.shape)
