"""Staying close: embeddings are held at those of a guide, of the training sentences or of general ones."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cosine_similarity

from informin.objectives.terms import Guide, Term, Views, option, require


def cosine_distance(x: Tensor, y: Tensor) -> Tensor:
    """mean_i 1 - cos(x_i, y_i).

    Args:
        x, y: (N, d). Any floating type; computed in float32.

    Returns:
        A scalar, from 0 to 2, the mean over the local sentences.
    """
    return (1 - cosine_similarity(x.float(), y.float(), dim=-1)).mean()


@dataclass
class Keep(Term):
    """The distance of both views' embeddings, below the projection head, from the guide's of the same sentences."""

    name = "keep"
    title = "staying close to the guide"
    weight = "keep_weight"
    reads_guide = "training"
    same_width = True
    views_differ = False

    keep_weight: float = option(0, "Of the distance, 1 - cosine, to the guide's embedding of the same sentence.")

    def prepare(self, guide: Guide) -> None:
        self._guide = guide

    def loss(self, views: Views) -> dict[str, Tensor]:
        own = cosine_distance(views.embedding1, self._guide.of(views.row1))
        return {"keep": (own + cosine_distance(views.embedding2, self._guide.of(views.row2))) / 2}


@dataclass
class Rehearsal(Term):
    """The same of general sentences, which each step reads beside its batch: what was known is not forgotten.

    Source:
        Robins (1995), "Catastrophic forgetting, rehearsal and pseudorehearsal".
    """

    name = "rehearsal"
    title = "staying close to the guide on general sentences"
    weight = "rehearsal_weight"
    reads_guide = "general"
    same_width = True
    views_differ = False

    rehearsal_weight: float = option(0, "Of the distance to the guide's embeddings of general sentences.")
    rehearsal_size: int = option(32, "General sentences a step and process.")

    def check(self) -> None:
        require(self.rehearsal_size >= 1, "rehearsal_size", self.rehearsal_size, "1 or more")

    def prepare(self, guide: Guide) -> None:
        self._guide = guide

    def loss(self, views: Views) -> dict[str, Tensor]:
        return {"rehearsal": cosine_distance(views.general, self._guide.of(views.general_row))}
