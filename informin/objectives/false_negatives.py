"""False-negative masking: exclude in-batch negatives that a guide considers similar to the anchor.

Text from one domain contains many sentences about the same thing. Using them as negatives pushes them apart, which can
make a good encoder worse on that text.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from informin.distributed import gather_with_gradient
from informin.guide.protocol import Guide, GuideNeeds
from informin.objectives.precision import in_float32
from informin.objectives.terms import Term, Views, needed, option, require


@in_float32
def false_negative_mask(guide1: Tensor, guide2: Tensor, threshold: float) -> Tensor:
    """Find false negatives: candidates whose guide embeddings are more similar to the anchor's than a threshold.

    Use it with `contrast` on text from one domain, where many sentences of a batch have nearly the same meaning.

    Also known as false-negative filtering, or guided in-sample selection (GISTEmbed, CachedGISTEmbedLoss). GISTEmbed's
    threshold is the similarity of the anchor and its own positive; here one threshold holds for all pairs.

        mask_ik = cos(guide1_i, guide2_k) > threshold

    Args:
        guide1: The guide's unit vectors of the anchors, (N, d).
        guide2: The guide's unit vectors of this process's candidates, (N, d).
        threshold: Cosine above which a candidate is a false negative.

    Returns:
        True where one of the candidates of all W processes is a false negative, (N, W*N) bool.

    Source:
        Solatorio (2024), GISTEmbed, section 3.

    Example:
        >>> import torch
        >>> guide = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
        >>> false_negative_mask(guide, guide, threshold=0.7).int()
        tensor([[1, 1, 0],
                [1, 1, 0],
                [0, 0, 1]], dtype=torch.int32)
    """
    return guide1 @ gather_with_gradient(guide2).T > threshold


def known_pairs(same: Tensor, ids: Tensor) -> Tensor:
    """Find candidates that are known not to be negatives of an anchor.

    Args:
        same: `Views.same` of the anchors, (B, M) int64.
        ids: Ids of C candidate sentences, (C,) int64.

    Returns:
        True where a candidate is not a negative, (B, C) bool.
    """
    return torch.stack([column[:, None] == ids for column in same.T]).any(0)


@dataclass
class FalseNegatives(Term):
    """Masks the most similar pairs of sentences, according to the guide, in the contrastive loss.

    Adds no value to the loss itself. See `false_negative_mask`.
    """

    name = "false_negatives"
    title = "false-negative masking"
    weight = "false_negative_fraction"
    summand = False
    views_differ = False

    false_negative_fraction: float = option(
        0,
        "Fraction of all sentence pairs to treat as false negatives: the most similar ones according to the guide.",
    )

    def check(self) -> None:
        require(
            self.false_negative_fraction < 1,
            "false_negative_fraction",
            self.false_negative_fraction,
            "a fraction below 1",
        )

    @property
    def guide_needs(self) -> GuideNeeds:
        return GuideNeeds()

    def prepare(self, guide: Guide) -> None:
        self._guide, self._threshold = guide, guide.quantile(self.false_negative_fraction)

    def add_to(self, views: Views) -> None:
        guide1, guide2 = self._guide.lookup(needed(views.row1)), self._guide.lookup(needed(views.row2))
        mask = false_negative_mask(guide1, guide2, self._threshold)
        views.false_negatives = mask if views.false_negatives is None else views.false_negatives | mask
