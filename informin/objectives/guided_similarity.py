"""Guided similarity: distill the similarities within a batch from a guide."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from informin.distributed import gather_with_gradient, own_places
from informin.errors import UsageError, counted
from informin.objectives.numerics import in_float32, mean_over_anchors
from informin.objectives.term import Guide, GuideNeeds, Term, Views, embeddings_of_guide
from informin.options import check_value, option


@in_float32
def guided_similarity(
    z1: Tensor,
    z2: Tensor,
    guide1: Tensor,
    guide2: Tensor,
    temperature: float = 0.05,
    guide_temperature: float = 0.03,
) -> Tensor:
    r"""Guided similarity loss: match the similarities within the batch to those of a guide.

    Use it to adapt an embedding model with a guide, often the model itself before training. It has no false negatives,
    because the guide decides how similar sentences should be. Choose a `guide_temperature` below `temperature` to
    sharpen the guide's similarities.

    Also known as ranking distillation, ListNet, similarity distillation, or relational knowledge distillation.

        loss = mean_i -sum_{k != i} p_ik log q_ik
        p_i = softmax_{k != i}( cos(guide1_i, guide2_k) / guide_temperature )
        q_i = softmax_{k != i}( cos(z1_i, z2_k) / temperature )

    With several processes, each uses its own anchors and the candidates of all processes; z2 is gathered with gradient.

    Args:
        z1: First views (the anchors), (N, d). Any floating-point type; computed in float32, even under autocast.
        z2: Second views (the candidates), (N, d).
        guide1: The guide's embeddings of the sentences in z1, (N, d').
        guide2: The guide's embeddings of the sentences in z2, (N, d').
        temperature: Divides the cosines of the views; above 0.
        guide_temperature: Divides the cosines of the guide; above 0.

    Returns:
        The mean loss over the local anchors, a scalar.

    Raises:
        UsageError: The batch has fewer than three sentences, so that there is nothing to rank.

    Source:
        Cao et al. (2007), ListNet, section 4; Liu et al. (2023), RankCSE, eq. 6, for sentence embeddings.

    Example:
        >>> import torch
        >>> z = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
        >>> guide = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
        >>> guided_similarity(z, z, guide, guide, temperature=0.5, guide_temperature=0.3)
        tensor(0.4977)
    """
    candidates = gather_with_gradient(normalize(z2.float(), dim=-1))  # (W*N, d)
    if len(candidates) < 3:
        raise UsageError(
            f"The batch has {counted(len(candidates), 'sentence')}, too few for guided similarity",
            needed="3 or more",
            fix="Increase `per_device_train_batch_size`.",
        )
    guide_candidates = gather_with_gradient(normalize(guide2.float(), dim=-1))  # (W*N, d')

    def loss_of(anchors: Tensor, guide_anchors: Tensor, targets: Tensor) -> Tensor:
        guide_logits = guide_anchors @ guide_candidates.T / guide_temperature  # (n, W*N)
        logits = anchors @ candidates.T / temperature
        itself = torch.arange(len(candidates), device=logits.device) == targets[:, None]
        expected = guide_logits.masked_fill(itself, -torch.inf).softmax(-1)
        log_probability = logits.masked_fill(itself, -torch.inf).log_softmax(-1).masked_fill(itself, 0)
        return -(expected * log_probability).sum(-1).mean()

    return mean_over_anchors(loss_of, normalize(z1.float(), dim=-1), normalize(guide1.float(), dim=-1), own_places(z1))


@dataclass
class GuidedSimilarity(Term):
    """Cross-entropy between the guide's similarities and those of the two views. See `guided_similarity`."""

    name = "guided"
    title = "guided similarity"
    paper = "rankcse"
    compares_views = False
    smallest_batch = 3  # two other sentences to rank

    weight: float = option(
        1.0,
        "Weight of guided similarity. With the objective guided, the weight of another term turns it off, unless this "
        "option is set, too.",
    )
    student_temperature: float = option(0.05, "Temperature of the trained encoder's similarities in guided similarity.")
    guide_temperature: float = option(
        0.03, "Temperature of the guide's similarities; below `student_temperature`, it sharpens them."
    )
    neighbors: int = option(
        0, "Number of nearest neighbors to average the guide's embeddings over in guided similarity; 0 for none."
    )

    def check(self) -> None:
        check_value(self.neighbors >= 0, "guided_neighbors", self.neighbors, "0 (no averaging) or more")
        for name in ("student_temperature", "guide_temperature"):
            value = getattr(self, name)
            check_value(0 < value < math.inf, name, value, "a number above 0")

    @property
    def guide_needs(self) -> GuideNeeds:
        return GuideNeeds(neighbors=self.neighbors, neighbors_option="guided_neighbors")

    def prepare(self, guide: Guide) -> None:
        super().prepare(guide.neighborhood_means(self.neighbors) if self.neighbors else guide)

    def loss(self, views: Views) -> Tensor:
        guide1, guide2 = embeddings_of_guide(self._guide, views)
        return guided_similarity(views.z1, views.z2, guide1, guide2, self.student_temperature, self.guide_temperature)
