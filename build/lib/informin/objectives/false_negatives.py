"""False negatives: give a lower weight to in-batch negatives that are similar to the anchor, or leave them out.

Text from one domain contains many sentences about the same thing. Using them as negatives pushes them apart, which can
make a good encoder worse on that text.
"""

import torch
from torch import Tensor

from informin.distributed import gather_with_gradient
from informin.objectives.numerics import in_float32

SIMILARITIES = ("guide", "model")


@in_float32
def false_negative_mask(x1: Tensor, x2: Tensor, threshold: float | Tensor) -> Tensor:
    """Find false negatives: candidates whose embeddings are more similar to the anchor's than a threshold.

    Use it with `contrast` on text from one domain, where many sentences of a batch have nearly the same meaning.

    Also known as false-negative filtering, or guided in-sample selection (GISTEmbed, CachedGISTEmbedLoss). GISTEmbed's
    threshold is the similarity of the anchor and its own positive; here one threshold holds for all pairs.

        mask_ik = cos(x1_i, x2_k) > threshold

    Args:
        x1: Unit vectors of the anchors, (N, d).
        x2: Unit vectors of this process's candidates, (N, d).
        threshold: Cosine above which a candidate is a false negative.

    Returns:
        True where one of the candidates of all W processes is a false negative, (N, W*N) bool.

    Source:
        Solatorio (2024), GISTEmbed, section 3.

    Example:
        >>> import torch
        >>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
        >>> false_negative_mask(x, x, threshold=0.7).int()
        tensor([[1, 1, 0],
                [1, 1, 0],
                [0, 0, 1]], dtype=torch.int32)
    """
    return x1 @ gather_with_gradient(x2).T > threshold


@in_float32
def batch_threshold(x1: Tensor, x2: Tensor, fraction: float, left_out: Tensor | None = None) -> Tensor:
    """Find the cosine that a fraction of the batch's pairs of different sentences exceeds, over all W processes.

    Args:
        x1: Unit vectors of this process's anchors, (N, d).
        x2: Unit vectors of this process's candidates, (N, d).
        fraction: Fraction of the pairs, from 0 to below 1; rounded down to a number of pairs.
        left_out: True for further pairs that do not count, such as copies of a sentence, (N, W*N) bool.

    Returns:
        The cosine, a scalar; the largest one of the batch if the fraction is less than one pair.

    Source:
        This project.

    Example:
        >>> import torch
        >>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
        >>> batch_threshold(x, x, fraction=0.4)
        tensor(0.6000)
    """
    cosines = gather_with_gradient(x1) @ gather_with_gradient(x2).T  # (W*N, W*N)
    counts = ~torch.eye(len(cosines), dtype=torch.bool, device=cosines.device)
    if left_out is not None:
        counts &= gather_with_gradient(left_out.float()) == 0
    # The number of pairs stays on the device: reading it would wait for the GPU.
    number = counts.sum()
    ascending = cosines.masked_fill(~counts, -torch.inf).flatten().sort().values
    place = len(ascending) - 1 - (number.double() * fraction).long()
    threshold = ascending.gather(0, place[None])[0]
    return torch.where(number > 0, threshold, torch.inf)  # without pairs there is one sentence, several times


def copies(ids: Tensor, candidates: Tensor) -> Tensor:
    """Return True where a candidate is a copy of the anchor's sentence, so no negative, (B, C) bool.

    Args:
        ids: `Views.sentence_ids` of the anchors, (B,) int64.
        candidates: Ids of C candidate sentences, (C,) int64.
    """
    return ids[:, None] == candidates
