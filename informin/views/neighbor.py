"""The nearest mutual neighbor of a sentence as its second view."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from informin.guide.neighbors import mutual_neighbors, nearest_mutual_neighbor
from informin.guide.protocol import Guide, GuideNeeds
from informin.objectives.terms import option, require
from informin.views.sentence_ids import sentence_ids
from informin.views.view import SecondView, SentenceTokens, View

CHUNK = 8_192  # rows whose ids are computed at once


@dataclass
class Neighbor(View):
    """Pairs each sentence with its nearest mutual neighbor by the guide, or with itself if it has none.

    Mutual neighbors have each other among their K nearest. None of them is a negative of the sentence.

    Source:
        Dwibedi et al. (2021), "With a Little Help from My Friends", NNCLR, whose neighbors come from a queue and need
        not be mutual.
    """

    title = "neighbors as views"

    view_neighbors: int = option(
        10,
        "Number of nearest neighbors in the guide among which to find a mutual neighbor for the second view.",
    )

    def check(self) -> None:
        require(self.view_neighbors >= 1, "view_neighbors", self.view_neighbors, "1 or more")

    @property
    def guide_needs(self) -> GuideNeeds:
        return GuideNeeds(neighbors=self.view_neighbors, neighbors_option="view_neighbors")

    def prepare(self, rows: Any, guide: Guide | None) -> None:
        assert guide is not None, "neighbors need a guide"
        indices, _ = guide.nearest(self.view_neighbors)
        self._rows, self._partners = rows, nearest_mutual_neighbor(indices)[guide.first]
        self._related = row_ids(rows)[mutual_neighbors(indices)[guide.first]]  # (N, k)

    def second_views(self, batch: dict[str, Tensor], tokens: SentenceTokens, seed: int) -> SecondView:
        indices = batch["row"].cpu()
        partners = self._partners[indices]
        return SecondView(self._rows[partners.tolist()]["input_ids"], partners, self._related[indices])


def row_ids(rows: Any) -> Tensor:
    """Return the `sentence_ids` (N,) int64 of all training rows."""
    found = []
    for start in range(0, len(rows), CHUNK):
        tokens = [torch.as_tensor(ids) for ids in rows[start : start + CHUNK]["input_ids"]]
        mask = pad_sequence([torch.ones_like(ids) for ids in tokens], batch_first=True)
        found.append(sentence_ids(pad_sequence(tokens, batch_first=True), mask))
    return torch.cat(found)
