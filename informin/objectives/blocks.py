"""Means over the anchors of a batch, in memory that grows with the batch and not with its square."""

from collections.abc import Callable
from itertools import repeat

from torch import Tensor
from torch.utils.checkpoint import checkpoint

ANCHORS = 512  # of a block


def mean_over_anchors(loss_of: Callable[..., Tensor], anchors: Tensor, *rows: Tensor | None) -> Tensor:
    """The mean of a loss of N anchors, of which a block at a time meets all candidates.

    Of more than one block, the backward pass computes the similarities again.

    Args:
        loss_of: from the rows of a block to the mean over its anchors, without random numbers.
        anchors, rows: (N, ...) each, or None, which every block gets.

    Returns:
        A scalar.
    """
    number = len(anchors)
    if number <= ANCHORS:
        return loss_of(anchors, *rows)
    parts = (repeat(None) if x is None else x.split(ANCHORS) for x in (anchors, *rows))
    return sum(
        checkpoint(loss_of, *block, use_reentrant=False, preserve_rng_state=False) * (len(block[0]) / number)
        for block in zip(*parts)
    )
