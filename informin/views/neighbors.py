"""The nearest neighbor as the other view of a sentence, where the two are mutual neighbors by a guide."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from informin.views.stacking import sentence_ids

CHUNK = 8_192  # rows whose ids are computed together


def all_mutual(places: Tensor) -> Tensor:
    """(N, k) int64: of a sentence's k neighbors those that have it among their own k; itself in place of the others.

    Args:
        places: (N, k) int64, the neighbors of N sentences, the nearest first.
    """
    own = torch.arange(len(places))[:, None]
    mutual = torch.stack([(places[candidates] == own).any(-1) for candidates in places.T], dim=1)  # (N, k)
    return torch.where(mutual, places, own)


def mutual_neighbors(places: Tensor) -> Tensor:
    """(N,) int64: the nearest of a sentence's k neighbors that has it among its own k; itself where none has.

    A sentence that is near to many, a hub, is among the nearest of few of them: mutual neighbors leave hubs out.

    Args:
        places: (N, k) int64, the neighbors of N sentences, the nearest first.
    """
    own, mutual = torch.arange(len(places)), all_mutual(places)
    return mutual[own, (mutual != own[:, None]).int().argmax(1)]


def row_ids(rows: Sequence[dict]) -> Tensor:
    """(N,) int64, the `sentence_ids` of all training rows."""
    found = []
    for start in range(0, len(rows), CHUNK):
        tokens = [torch.as_tensor(ids) for ids in rows[start : start + CHUNK]["input_ids"]]
        mask = pad_sequence([torch.ones_like(ids) for ids in tokens], batch_first=True)
        found.append(sentence_ids(pad_sequence(tokens, batch_first=True), mask))
    return torch.cat(found)


@dataclass
class WithPartners:
    """A data collator that puts the partner of each sentence behind the batch: rows 0 to B, then their partners.

    With the batch come the ids of the mutual neighbors of each sentence, `related` (B, k).

    Attributes:
        collate: from rows to a batch of tensors.
        rows: all training rows, by place.
        partners: (N,), the place of each row's partner.
        related: (N, k), the ids of each row's mutual neighbors: no negatives of it.
    """

    collate: Callable[[list[dict]], dict[str, Tensor]]
    rows: Sequence[dict]
    partners: Tensor
    related: Tensor

    def __call__(self, batch: list[dict]) -> dict[str, Tensor]:
        places = torch.tensor([int(row["row"]) for row in batch])
        others = [self.rows[place] for place in self.partners[places].tolist()]
        return {**self.collate([*batch, *others]), "related": self.related[places]}
