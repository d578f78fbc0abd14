"""The nearest mutual neighbor as the second view of a sentence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from informin.views.stacking import sentence_ids

CHUNK = 8_192  # rows whose ids are computed at once


def row_ids(rows: Sequence[dict]) -> Tensor:
    """Return the `sentence_ids` (N,) int64 of all training rows."""
    found = []
    for start in range(0, len(rows), CHUNK):
        tokens = [torch.as_tensor(ids) for ids in rows[start : start + CHUNK]["input_ids"]]
        mask = pad_sequence([torch.ones_like(ids) for ids in tokens], batch_first=True)
        found.append(sentence_ids(pad_sequence(tokens, batch_first=True), mask))
    return torch.cat(found)


@dataclass
class WithPartners:
    """A data collator that appends the partner of each sentence to the batch: rows 0 to B, then their partners.

    The batch also gets `related` (B, k), the ids of the mutual neighbors of each sentence.

    Attributes:
        collate: Turns rows into a batch of tensors.
        rows: All training rows.
        partners: (N,), the index of each row's partner.
        related: (N, k), the ids of each row's mutual neighbors, which are not its negatives.
    """

    collate: Callable[[list[dict]], dict[str, Tensor]]
    rows: Sequence[dict]
    partners: Tensor
    related: Tensor

    def __call__(self, batch: list[dict]) -> dict[str, Tensor]:
        indices = torch.tensor([int(row["row"]) for row in batch])
        others = [self.rows[index] for index in self.partners[indices].tolist()]
        return {**self.collate([*batch, *others]), "related": self.related[indices]}
