"""Guided similarity: the batch's similarities are taught by a guide's, made sharper."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from informin.distributed import gather_with_gradient, rank
from informin.errors import UsageError
from informin.guide.protocol import Guide, GuideNeeds
from informin.objectives.blocks import mean_over_anchors
from informin.objectives.precision import in_float32
from informin.objectives.terms import Term, Views, option, require


@in_float32
def guided_similarity(
    z1: Tensor,
    z2: Tensor,
    guide1: Tensor,
    guide2: Tensor,
    temperature: float = 0.05,
    guide_temperature: float = 0.03,
) -> Tensor:
    r"""Cross entropy of how near the other sentences of the batch are, with how near the guide holds them for.

    mean_i -sum_{k != i} softmax_k(cos(g1_i, g2_k) / guide_temperature) log softmax_k(cos(z1_i, z2_k) / temperature)

    A guide temperature below the other asks for neighborhoods that are clearer than the guide's own. Over several
    processes the anchors stay local and the candidates are gathered, those of z2 with gradient.

    Args:
        z1, z2: (N, d), the two views. Any floating type; computed in float32, under autocast too.
        guide1, guide2: (N, d'), the guide's embeddings of what the two views say.

    Returns:
        A scalar, the mean over the local anchors.

    Raises:
        UsageError: fewer than three sentences in the whole batch: one other is always the nearest.

    Source:
        Cao et al. (2007), ListNet, section 4; for sentence embeddings Liu et al. (2023), RankCSE, eq. 6.
    """
    candidates = gather_with_gradient(normalize(z2.float(), dim=-1))  # (W*N, d)
    if len(candidates) < 3:
        raise UsageError(
            f"Guided similarity compares the other sentences of a batch, and this batch has {len(candidates)}. Use a "
            "`per_device_train_batch_size` of 3 or more."
        )
    taught_candidates = gather_with_gradient(normalize(guide2.float(), dim=-1))  # (W*N, d')
    own = rank() * len(z1) + torch.arange(len(z1), device=z1.device)

    def loss_of(anchors: Tensor, taught_anchors: Tensor, own: Tensor) -> Tensor:
        taught = taught_anchors @ taught_candidates.T / guide_temperature  # (n, W*N)
        logits = anchors @ candidates.T / temperature
        itself = torch.arange(len(candidates), device=logits.device) == own[:, None]
        target = taught.masked_fill(itself, -torch.inf).softmax(-1)
        log_share = logits.masked_fill(itself, -torch.inf).log_softmax(-1).masked_fill(itself, 0)
        return -(target * log_share).sum(-1).mean()

    return mean_over_anchors(loss_of, normalize(z1.float(), dim=-1), normalize(guide1.float(), dim=-1), own)


@dataclass
class GuidedSimilarity(Term):
    """Cross entropy of the similarities of the two views with those of the guide."""

    name = "guided"
    title = "guided similarity"
    weight = "guided_weight"
    paper = "rankcse"
    views_differ = False
    smallest_batch = 3  # of a single other sentence the similarity is always 1

    guided_weight: float = option(0, "Of guided similarity.")
    student_temperature: float = option(0.05, "Scale of the cosines that are taught.")
    guide_temperature: float = option(0.03, "Scale of the guide's; below the other it makes neighborhoods clearer.")

    guided_neighbors: int = option(
        0, "Teach the similarities of the means of each sentence and so many nearest, in the place of its own."
    )

    def check(self) -> None:
        require(self.guided_neighbors >= 0, "guided_neighbors", self.guided_neighbors, "0 (its own) or more")
        for name in ("student_temperature", "guide_temperature"):
            value = getattr(self, name)
            require(0 < value < math.inf, name, value, "a number above 0")

    @property
    def guide_needs(self) -> GuideNeeds:
        return GuideNeeds(neighbors=self.guided_neighbors, neighbors_option="guided_neighbors")

    def prepare(self, guide: Guide) -> None:
        self._guide = guide.neighborhood_means(self.guided_neighbors) if self.guided_neighbors else guide

    def loss(self, views: Views) -> dict[str, Tensor]:
        guide1, guide2 = self._guide.lookup(views.row1), self._guide.lookup(views.row2)
        value = guided_similarity(views.z1, views.z2, guide1, guide2, self.student_temperature, self.guide_temperature)
        return {"guided": value}
