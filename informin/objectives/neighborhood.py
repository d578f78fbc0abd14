"""Neighborhoods: each sentence is drawn to the mean of those that a guide holds for its nearest."""

from dataclasses import dataclass

from torch import Tensor

from informin.guide.protocol import Guide, GuideNeeds
from informin.objectives.distillation import cosine_distance
from informin.objectives.terms import Term, Views, option, require


@dataclass
class Neighborhood(Term):
    """The distance of both views' embeddings, below the projection head, from the mean of their neighborhood.

    What the guide gets wrong of one sentence is averaged out over its neighbors, and the encoder learns to do so from
    the text alone. The mean is over the sentence and its k nearest, taken twice: see `informin.guide.smoothing`.

    Source:
        This project's; for the mean see `informin.guide.smoothing`.
    """

    name = "neighborhood"
    title = "neighborhoods by the guide"
    weight = "neighbor_weight"
    views_differ = False

    neighbor_weight: float = option(
        0, "Of the distance, 1 - cosine, to the mean of the guide's embeddings of a sentence and its nearest."
    )
    neighbor_count: int = option(10, "How many nearest.")

    def check(self) -> None:
        require(self.neighbor_count >= 1, "neighbor_count", self.neighbor_count, "1 or more")

    @property
    def guide_needs(self) -> GuideNeeds:
        return GuideNeeds(same_dimension=True, neighbors=self.neighbor_count, neighbors_option="neighbor_count")

    def prepare(self, guide: Guide) -> None:
        self._means = guide.neighborhood_means(self.neighbor_count)

    def loss(self, views: Views) -> dict[str, Tensor]:
        own = cosine_distance(views.embedding1, self._means.lookup(views.row1))
        return {"neighborhood": (own + cosine_distance(views.embedding2, self._means.lookup(views.row2))) / 2}
