"""Staying close: embeddings are held at those of a guide, of the training sentences or of general ones."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cosine_similarity

from informin.guide.protocol import Guide, GuideNeeds
from informin.objectives.terms import Term, Views, option, require


def cosine_distance(x: Tensor, y: Tensor) -> Tensor:
    """mean_i 1 - cos(x_i, y_i).

    Args:
        x, y: (N, d). Any floating type; computed in float32.

    Returns:
        A scalar, from 0 to 2, the mean over the local sentences.
    """
    return (1 - cosine_similarity(x.float(), y.float(), dim=-1)).mean()


@dataclass
class Distillation(Term):
    """The distance of both views' embeddings, below the projection head, from the guide's of the same sentences."""

    name = "distillation"
    title = "staying close to the guide"
    weight = "distillation_weight"
    views_differ = False

    distillation_weight: float = option(
        0, "Of the distance, 1 - cosine, to the guide's embedding of the same sentence."
    )

    @property
    def guide_needs(self) -> GuideNeeds:
        return GuideNeeds(same_dimension=True)

    def prepare(self, guide: Guide) -> None:
        self._guide = guide

    def loss(self, views: Views) -> dict[str, Tensor]:
        own = cosine_distance(views.embedding1, self._guide.lookup(views.row1))
        return {"distillation": (own + cosine_distance(views.embedding2, self._guide.lookup(views.row2))) / 2}


@dataclass
class Replay(Term):
    """The same of general sentences, which each step reads beside its batch: what was known is not forgotten.

    Source:
        Robins (1995), "Catastrophic forgetting, replay and pseudoreplay".
    """

    name = "replay"
    title = "staying close to the guide on general sentences"
    weight = "replay_weight"
    views_differ = False

    replay_weight: float = option(0, "Of the distance to the guide's embeddings of general sentences.")
    replay_size: int = option(32, "General sentences a step and process.")

    def check(self) -> None:
        require(self.replay_size >= 1, "replay_size", self.replay_size, "1 or more")

    @property
    def guide_needs(self) -> GuideNeeds:
        return GuideNeeds("general", same_dimension=True)

    def prepare(self, guide: Guide) -> None:
        self._guide = guide

    def loss(self, views: Views) -> dict[str, Tensor]:
        return {"replay": cosine_distance(views.general, self._guide.lookup(views.general_row))}
