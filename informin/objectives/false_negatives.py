"""False negatives: give a lower weight to in-batch negatives that are similar to the anchor, or leave them out.

Text from one domain contains many sentences about the same thing. Using them as negatives pushes them apart, which can
make a good encoder worse on that text.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from informin.distributed import gather_with_gradient
from informin.objectives.numerics import in_float32
from informin.objectives.terms import Guide, GuideNeeds, Term, Views, check_value, needed, option

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
    pairs = cosines[counts]
    if not len(pairs):  # there is one sentence, several times
        return cosines.new_tensor(torch.inf)
    return pairs.kthvalue(len(pairs) - int(fraction * len(pairs))).values


def copies(ids: Tensor, candidates: Tensor) -> Tensor:
    """Return True where a candidate is a copy of the anchor's sentence, so no negative, (B, C) bool.

    Args:
        ids: `Views.sentence_ids` of the anchors, (B,) int64.
        candidates: Ids of C candidate sentences, (C,) int64.
    """
    return ids[:, None] == candidates


@dataclass
class FalseNegatives(Term):
    """Lowers the weight of the most similar pairs of sentences in the contrastive loss.

    With the default weight of 0, they are left out. Similarity is that of the guide, or of the trained model's own
    projections in this step, without gradient. Adds no value to the loss itself. Does not affect the queue. See
    `false_negative_mask`.

    Source:
        Chen et al. (2022), InforMin-CL, limitations: lower weights for similar negatives.
    """

    name = "false_negatives"
    title = "false-negative weighting"
    weight = "false_negative_fraction"
    summand = False
    views_differ = False

    false_negative_fraction: float = option(
        0, "Fraction of all sentence pairs to treat as false negatives: the most similar ones."
    )
    false_negative_weight: float = option(
        0, "Weight of false negatives in the denominator of the contrastive loss; 0 leaves them out."
    )
    false_negative_similarity: str = option(
        "guide",
        "Whose similarities find false negatives: those of the `guide`, or of the trained `model` in each batch.",
        choices=SIMILARITIES,
    )

    def check(self) -> None:
        for name in ("false_negative_fraction", "false_negative_weight"):
            value = getattr(self, name)
            check_value(0 <= value < 1, name, value, "0 or more, and below 1")

    @property
    def guide_needs(self) -> GuideNeeds | None:
        return GuideNeeds() if self.false_negative_similarity == "guide" else None

    def prepare(self, guide: Guide) -> None:
        self._guide, self._threshold = guide, guide.quantile(self.false_negative_fraction)

    def add_to(self, views: Views) -> None:
        mask = self._by_guide(views) if self.guide_needs else self._by_model(views)
        weights = torch.where(mask, self.false_negative_weight, 1.0)
        views.negative_weights = weights if views.negative_weights is None else weights.minimum(views.negative_weights)

    def _by_guide(self, views: Views) -> Tensor:
        guide = self._guide.lookup(needed(views.row))
        return false_negative_mask(guide, guide, self._threshold)

    def _by_model(self, views: Views) -> Tensor:
        z1, z2 = (normalize(z.detach().float(), dim=-1) for z in (views.z1, views.z2))
        left_out = None if views.negative_weights is None else views.negative_weights == 0
        return false_negative_mask(z1, z2, batch_threshold(z1, z2, self.false_negative_fraction, left_out))
