"""Dropout in training on a CPU, with masks from a generator of its own.

PyTorch draws one number after the other, which takes 6% of a training step of all-MiniLM-L6-v2, and its threads share
one generator. Here NumPy draws 16 bits for each number of a mask.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import dropout, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode


class OwnDropout(TorchFunctionMode):
    """Inside this context, `dropout` and the dropout of attention draw their masks from a generator of its own.

    Args:
        seed: Seed of the generator. By default, it is drawn from PyTorch's generator.
    """

    def __init__(self, seed: int | None = None):
        super().__init__()
        seed = int(torch.randint(2**62, ())) if seed is None else seed
        self.generator = np.random.Generator(np.random.SFC64(seed))

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
        return x * keep_mask(x, p, self.generator)

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
            scores = scores.masked_fill(~attn_mask, float("-inf"))
        elif attn_mask is not None:
            scores = scores + attn_mask
        return self._dropout(scores.softmax(-1), dropout_p) @ value


def keep_mask(x: Tensor, rate: float, generator: np.random.Generator) -> Tensor:
    """Return a random mask like x, 0 with probability `rate`, rounded to 1/65,536, and else what keeps the mean."""
    kept = round((1 - rate) * 2**16)
    bits = generator.integers(2**64, size=-(-x.numel() // 4), dtype=np.uint64).view(np.uint16)[: x.numel()]
    chosen = torch.from_numpy((bits < kept).view(np.int8))  # an int8 becomes a float faster than a bool
    return chosen.to(x.dtype).mul_(2**16 / max(kept, 1)).view(x.shape)
