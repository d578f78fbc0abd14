"""Embedding distillation: keep embeddings close to those of a frozen guide."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cosine_similarity

from informin.objectives.term import GuideNeeds, Term, Views, embeddings_of_guide, needed
from informin.options import check_value, option


def cosine_distance(x: Tensor, y: Tensor) -> Tensor:
    """Cosine distance between embeddings and their targets.

    Use it to adapt an embedding model without forgetting. The guide is then the model before training.
    `Distillation` and `Replay` use it with the guide's embeddings as targets.

    Also known as embedding distillation, feature distillation, or CosineEmbeddingLoss for positive pairs.

        loss = mean_i 1 - cos(x_i, y_i)

    Args:
        x: Embeddings, (N, d). Any floating-point type; computed in float32.
        y: Targets, (N, d).

    Returns:
        The mean over the local sentences, a scalar from 0 to 2.

    Source:
        Reimers and Gurevych (2020), with the squared error, which for unit vectors is twice this loss.

    Example:
        >>> import torch
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> y = torch.tensor([[0.8, 0.6], [0.0, 2.0]])
        >>> cosine_distance(x, y)
        tensor(0.1000)
    """
    return (1 - cosine_similarity(x.float(), y.float(), dim=-1)).mean()


@dataclass
class Distillation(Term):
    """Cosine distance of both views' embeddings from the guide's embeddings of the same sentences.

    Uses the embeddings before the projection head. See `cosine_distance`.
    """

    title = "embedding distillation"
    reads_projections = False
    compares_views = False

    weight: float = option(
        1.0, "Weight of embedding distillation, the cosine distance to the guide's embeddings of the same sentences."
    )

    @property
    def guide_needs(self) -> GuideNeeds:
        return GuideNeeds(same_dimension=True)

    def loss(self, views: Views) -> Tensor:
        one, other = embeddings_of_guide(self._guide, views)
        first = cosine_distance(needed(views.embedding1), one)
        second = cosine_distance(needed(views.embedding2), other)
        return (first + second) / 2


@dataclass
class Replay(Term):
    """Embedding distillation on general sentences, to prevent forgetting outside the training domain.

    Each step encodes `size` general sentences in addition to its batch. Also known as rehearsal, or experience
    replay.

    Source:
        Robins (1995), "Catastrophic forgetting, replay and pseudoreplay".
    """

    title = "replay of general sentences"
    reads_projections = False
    compares_views = False

    weight: float = option(1.0, "Weight of replay, the cosine distance to the guide's embeddings of general sentences.")
    size: int = option(32, "Number of general sentences per step and process.")

    def check(self) -> None:
        check_value(self.size >= 1, "replay_size", self.size, "1 or more")

    @property
    def guide_needs(self) -> GuideNeeds:
        return GuideNeeds("general", same_dimension=True)

    def loss(self, views: Views) -> Tensor:
        target = self._guide.lookup(needed(views.general_row), views.z1.device)
        return cosine_distance(needed(views.general), target)
