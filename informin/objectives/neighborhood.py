"""Neighborhood distillation: pull each sentence toward the mean of its nearest neighbors in a guide."""

from dataclasses import dataclass

from torch import Tensor

from informin.guide.protocol import Guide, GuideNeeds
from informin.objectives.distillation import cosine_distance
from informin.objectives.terms import Term, Views, needed, option, require


@dataclass
class Neighborhood(Term):
    """Cosine distance of both views' embeddings from the mean of the sentence's neighborhood in the guide.

    Averaging over neighbors removes some of the guide's errors on single sentences, and the encoder learns to do the
    same from the text alone. The mean covers the sentence and its `neighbor_count` nearest neighbors, and is taken
    twice: see `informin.guide.smoothing`. Uses the embeddings below the projection head.

    Source:
        This project. See `cosine_distance` and `informin.guide.smoothing`.
    """

    name = "neighborhood"
    title = "neighborhood distillation"
    weight = "neighbor_weight"
    views_differ = False

    neighbor_weight: float = option(
        0,
        "Weight of neighborhood distillation, the cosine distance to the mean of a sentence's neighbors in the guide.",
    )
    neighbor_count: int = option(10, "Number of nearest neighbors in neighborhood distillation.")

    def check(self) -> None:
        require(self.neighbor_count >= 1, "neighbor_count", self.neighbor_count, "1 or more")

    @property
    def guide_needs(self) -> GuideNeeds:
        return GuideNeeds(same_dimension=True, neighbors=self.neighbor_count, neighbors_option="neighbor_count")

    def prepare(self, guide: Guide) -> None:
        self._means = guide.neighborhood_means(self.neighbor_count)

    def loss(self, views: Views) -> dict[str, Tensor]:
        first = cosine_distance(needed(views.embedding1), self._means.lookup(needed(views.row1)))
        second = cosine_distance(needed(views.embedding2), self._means.lookup(needed(views.row2)))
        return {"neighborhood": (first + second) / 2}
