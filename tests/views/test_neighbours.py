"""Mutual neighbours, and the collator that puts them behind a batch."""

import numpy as np
import torch

from informin.views.neighbours import WithPartners, mutual_neighbours


def test_a_loop_over_random_points():
    points = np.random.default_rng(0).normal(size=(40, 3))
    distance = ((points[:, None] - points) ** 2).sum(-1)
    np.fill_diagonal(distance, np.inf)
    places = distance.argsort(1)[:, :4]
    expected = [next((j for j in places[i] if i in places[j]), i) for i in range(40)]
    assert mutual_neighbours(torch.from_numpy(places)).tolist() == expected
    assert any(expected[i] == i for i in range(40)), "some have none"
    assert any(expected[i] not in (i, places[i, 0]) for i in range(40)), "and some not the nearest"


def test_of_one_neighbour_only_pairs_that_chose_each_other():
    assert mutual_neighbours(torch.tensor([[1], [0], [0]])).tolist() == [1, 0, 2]


def test_partners_follow_the_batch_in_its_order():
    rows = [{"row": i, "text": f"{i}"} for i in range(5)]
    collator = WithPartners(lambda rows: [row["text"] for row in rows], rows, torch.tensor([3, 1, 4, 0, 2]))
    assert collator([rows[4], rows[0], rows[1]]) == ["4", "0", "1", "2", "3", "1"]
