"""Negatives that are none: pairs of sentences that a guide holds for near.

Text of one domain is full of sentences about the same thing. As negatives of one another they are pushed apart, which
makes a good encoder worse on that text.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from informin.distributed import gather_with_gradient
from informin.guide.protocol import Guide, GuideNeeds
from informin.objectives.precision import in_float32
from informin.objectives.terms import Term, Views, option, require


@in_float32
def false_negative_mask(guide1: Tensor, guide2: Tensor, threshold: float) -> Tensor:
    """(N, W*N) bool: which candidates of all W processes the guide puts above a cosine of `threshold` to an anchor.

    Args:
        guide1, guide2: (N, d), the guide's unit vectors of what the anchors and this process's candidates say.

    Source:
        Solatorio (2024), GISTEmbed, section 3, whose threshold is the cosine of the anchor and its own positive; here
        it is one for all pairs.
    """
    return guide1 @ gather_with_gradient(guide2).T > threshold


def known_pairs(same: Tensor, ids: Tensor) -> Tensor:
    """(B, C) bool: which of C sentences are among those that are no negatives of an anchor.

    Args:
        same: (B, M) int64, `Views.same` of the anchors.
        ids: (C,) int64, of the sentences.
    """
    return torch.stack([column[:, None] == ids for column in same.T]).any(0)


@dataclass
class FalseNegatives(Term):
    """Which pairs the contrast has for no negatives; no loss of its own."""

    name = "false_negatives"
    title = "without negatives that a guide holds for near"
    weight = "false_negative_fraction"
    summand = False
    views_differ = False

    false_negative_fraction: float = option(
        0,
        "Share of all pairs of sentences that are no negatives: those that the guide holds for the nearest. On text of "
        "one domain 0.05, for instance.",
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
        near = false_negative_mask(self._guide.lookup(views.row1), self._guide.lookup(views.row2), self._threshold)
        views.false_negatives = near if views.false_negatives is None else views.false_negatives | near
