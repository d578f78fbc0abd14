"""Mutual neighbors, and the collator that puts them behind a batch."""

import torch
from datasets import Dataset

from informin.views import neighbors
from informin.views.neighbors import WithPartners, row_ids
from informin.views.stacking import sentence_ids


def test_partners_follow_the_batch_in_its_order():
    rows = [{"row": i, "text": f"{i}"} for i in range(5)]
    related = torch.arange(10).view(5, 2)
    collator = WithPartners(
        lambda rows: {"texts": [row["text"] for row in rows]}, rows, torch.tensor([3, 1, 4, 0, 2]), related
    )
    batch = collator([rows[4], rows[0], rows[1]])
    assert batch["texts"] == ["4", "0", "1", "2", "3", "1"]
    assert batch["related"].tolist() == [[8, 9], [0, 1], [2, 3]]


def test_rows_of_the_same_words_have_one_id(monkeypatch):
    monkeypatch.setattr(neighbors, "CHUNK", 2)
    ids = row_ids(Dataset.from_dict({"input_ids": [[2, 5, 3], [2, 3], [2, 5, 3], [2, 6, 3], [2, 5, 5, 3]]}))
    assert ids[0] == ids[2] and len(set(ids.tolist())) == 4
    padded = torch.tensor([[2, 5, 3, 0], [2, 3, 0, 0]])
    assert torch.equal(sentence_ids(padded, (padded > 0).long()), ids[:2]), "as in a batch"
