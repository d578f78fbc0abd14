"""Negatives that are none: pairs of sentences that a guide holds for near.

Text of one domain is full of sentences about the same thing. As negatives of one another they are pushed apart, which
makes a good encoder worse on that text.
"""

from torch import Tensor

from informin.distributed import gather_with_gradient


def near_pairs(guide1: Tensor, guide2: Tensor, threshold: float) -> Tensor:
    """(N, W*N) bool: which candidates of all W processes the guide puts above a cosine of `threshold` to an anchor.

    Args:
        guide1, guide2: (N, d), the guide's unit vectors of what the anchors and this process's candidates say.

    Source:
        Solatorio (2024), GISTEmbed, section 3, whose threshold is the cosine of the anchor and its own positive; here
        it is one for all pairs.
    """
    return guide1 @ gather_with_gradient(guide2).T > threshold
