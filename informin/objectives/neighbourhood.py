"""Neighbourhoods: each sentence is drawn to the mean of those that a guide holds for its nearest."""

from dataclasses import dataclass

from torch import Tensor

from informin.objectives.keep import cosine_distance
from informin.objectives.terms import Guide, Term, Views, option, require


@dataclass
class Neighbourhood(Term):
    """The distance of both views' embeddings, below the projection head, from the mean of their neighbourhood.

    What the guide gets wrong of one sentence is averaged out over its neighbours, and the encoder learns to do so from
    the text alone. The mean is over the sentence and its k nearest, taken twice: see `Guide.neighbourhoods`.

    Source:
        This project's; for the mean see `Guide.neighbourhoods`.
    """

    name = "neighbourhood"
    title = "neighbourhoods by the guide"
    weight = "neighbourhood_weight"
    reads_guide = "training"
    same_width = True
    views_differ = False

    neighbourhood_weight: float = option(
        0, "Of the distance, 1 - cosine, to the mean of the guide's embeddings of a sentence and its nearest."
    )
    neighbourhood_size: int = option(10, "How many nearest.")

    def check(self) -> None:
        require(self.neighbourhood_size >= 1, "neighbourhood_size", self.neighbourhood_size, "1 or more")

    @property
    def neighbours(self) -> int:
        return self.neighbourhood_size

    def prepare(self, guide: Guide) -> None:
        self._means = guide.neighbourhoods(self.neighbourhood_size)

    def loss(self, views: Views) -> dict[str, Tensor]:
        own = cosine_distance(views.embedding1, self._means.of(views.row1))
        return {"neighbourhood": (own + cosine_distance(views.embedding2, self._means.of(views.row2))) / 2}
