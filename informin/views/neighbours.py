"""The nearest neighbour as the other view of a sentence, where the two are mutual neighbours by a guide."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def mutual_neighbours(places: Tensor) -> Tensor:
    """(N,) int64: the nearest of a sentence's k neighbours that has it among its own k; itself where none has.

    A sentence that is near to many, a hub, is among the nearest of few of them: mutual neighbours leave hubs out.

    Args:
        places: (N, k) int64, the neighbours of N sentences, the nearest first.
    """
    own = torch.arange(len(places))
    partners = own.clone()
    for candidates in places.T.flip(0):  # (N,); the nearest last, so that it stays
        mutual = (places[candidates] == own[:, None]).any(-1)
        partners = torch.where(mutual, candidates, partners)
    return partners


@dataclass
class WithPartners:
    """A data collator that puts the partner of each sentence behind the batch: rows 0 to B, then their partners.

    Attributes:
        collate: from rows to a batch of tensors.
        rows: all training rows, by place.
        partners: (N,), the place of each row's partner.
    """

    collate: Callable[[list[dict]], dict[str, Tensor]]
    rows: Sequence[dict]
    partners: Tensor

    def __call__(self, batch: list[dict]) -> dict[str, Tensor]:
        others = [self.rows[int(self.partners[row["row"]])] for row in batch]
        return self.collate([*batch, *others])
