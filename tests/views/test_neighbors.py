"""Mutual neighbors, and the collator that puts them behind a batch."""

import numpy as np
import torch
from datasets import Dataset

from informin.views import neighbors
from informin.views.neighbors import WithPartners, all_mutual, mutual_neighbors, row_ids
from informin.views.stacking import sentence_ids


def test_a_loop_over_random_points():
    points = np.random.default_rng(0).normal(size=(40, 3))
    distance = ((points[:, None] - points) ** 2).sum(-1)
    np.fill_diagonal(distance, np.inf)
    places = distance.argsort(1)[:, :4]
    expected = [next((j for j in places[i] if i in places[j]), i) for i in range(40)]
    assert mutual_neighbors(torch.from_numpy(places)).tolist() == expected
    assert any(expected[i] == i for i in range(40)), "some have none"
    assert any(expected[i] not in (i, places[i, 0]) for i in range(40)), "and some not the nearest"


def test_of_one_neighbor_only_pairs_that_chose_each_other():
    assert mutual_neighbors(torch.tensor([[1], [0], [0]])).tolist() == [1, 0, 2]


def test_partners_follow_the_batch_in_its_order():
    rows = [{"row": i, "text": f"{i}"} for i in range(5)]
    related = torch.arange(10).view(5, 2)
    collator = WithPartners(
        lambda rows: {"texts": [row["text"] for row in rows]}, rows, torch.tensor([3, 1, 4, 0, 2]), related
    )
    batch = collator([rows[4], rows[0], rows[1]])
    assert batch["texts"] == ["4", "0", "1", "2", "3", "1"]
    assert batch["related"].tolist() == [[8, 9], [0, 1], [2, 3]]


def test_all_mutual_neighbors_by_a_loop():
    places = torch.rand(30, 30, generator=torch.Generator().manual_seed(0)).fill_diagonal_(-1).topk(5).indices
    expected = [[j if i in places[j] else i for j in places[i].tolist()] for i in range(30)]
    assert all_mutual(places).tolist() == expected
    assert any(len(set(row)) > 2 for row in expected), "some have several"


def test_rows_of_the_same_words_have_one_id(monkeypatch):
    monkeypatch.setattr(neighbors, "CHUNK", 2)
    ids = row_ids(Dataset.from_dict({"input_ids": [[2, 5, 3], [2, 3], [2, 5, 3], [2, 6, 3], [2, 5, 5, 3]]}))
    assert ids[0] == ids[2] and len(set(ids.tolist())) == 4
    padded = torch.tensor([[2, 5, 3, 0], [2, 3, 0, 0]])
    assert torch.equal(sentence_ids(padded, (padded > 0).long()), ids[:2]), "as in a batch"
