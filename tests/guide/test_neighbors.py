"""Mutual neighbors."""

import numpy as np
import torch

from informin.guide.neighbors import mutual_neighbors, nearest_mutual_neighbor


def test_nearest_mutual_neighbor_matches_a_loop():
    points = np.random.default_rng(0).normal(size=(40, 3))
    distance = ((points[:, None] - points) ** 2).sum(-1)
    np.fill_diagonal(distance, np.inf)
    indices = distance.argsort(1)[:, :4]
    expected = [next((j for j in indices[i] if i in indices[j]), i) for i in range(40)]
    assert nearest_mutual_neighbor(torch.from_numpy(indices)).tolist() == expected
    assert any(expected[i] == i for i in range(40)), "some have none"
    assert any(expected[i] not in (i, indices[i, 0]) for i in range(40)), "and some not the nearest"


def test_single_neighbors_are_mutual_only_in_pairs():
    assert nearest_mutual_neighbor(torch.tensor([[1], [0], [0]])).tolist() == [1, 0, 2]


def test_mutual_neighbors_match_a_loop():
    indices = torch.rand(30, 30, generator=torch.Generator().manual_seed(0)).fill_diagonal_(-1).topk(5).indices
    expected = [[j if i in indices[j] else i for j in indices[i].tolist()] for i in range(30)]
    assert mutual_neighbors(indices).tolist() == expected
    assert any(len(set(row)) > 2 for row in expected), "some have several"
