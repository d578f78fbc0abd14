"""Ids that are equal for equal sentences."""

from torch import Tensor


def sentence_ids(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Return a checksum (B,) int64 of each sentence's tokens (B, L), which does not depend on the padding."""
    # A polynomial in an odd number, modulo 2^64: integer overflow is intended.
    powers = input_ids.new_full(input_ids.shape[1:], 6364136223846793005).cumprod(0)  # (L,)
    positions = (attention_mask.cumsum(1) - 1).clamp(min=0)  # in the sentence: padding may come first
    return ((input_ids + 1) * attention_mask * powers[positions]).sum(-1)
