"""Whether the attention kernel for short texts can be used: Triton needs a C compiler and a GPU that it knows."""

import logging
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

logger = logging.getLogger(__name__)


LONGEST = 64  # tokens of a text
WIDEST = 128  # dimensions of an attention head


def attention_of_short_texts(longest: int, query: Tensor) -> Callable[..., Tensor] | None:
    """Return `ShortAttention.apply` if it can compute attention for some texts, else None.

    Args:
        longest: No text is longer.
        query: (T, H, d), of any texts.
    """
    if longest > LONGEST or query.shape[-1] > WIDEST:
        return None
    return _compiled(query.device)


@cache
def _compiled(device: torch.device) -> Callable[..., Tensor] | None:
    """Return `ShortAttention.apply` if it runs on a device. The first call compiles it for one size."""
    try:
        from informin.fast.short_attention import ShortAttention

        sample = torch.ones(1, 1, 16, dtype=torch.float16, device=device)
        ShortAttention.apply(sample, sample, sample, torch.arange(2, device=device), 1, 0.0, 1.0, None, False)
    except Exception as error:  # whatever a missing compiler raises
        if not isinstance(error, ImportError):
            logger.info(f"FlashAttention is used for short texts, because Triton cannot compile ({error}).")
        return None
    return ShortAttention.apply
