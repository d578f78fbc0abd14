"""Staying close to the guide: a loop, closed forms, an invariance, an error."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from informin.errors import UsageError
from informin.objectives.distillation import Distillation, Replay, cosine_distance
from informin.objectives.neighborhood import Neighborhood
from informin.objectives.terms import Views
from tests.objectives.conftest import assert_gradient


def test_numpy_loop(views):
    x, guide = (z.double().numpy() for z in views)
    distances = [1 - a @ b / np.sqrt((a @ a) * (b @ b)) for a, b in zip(x, guide)]
    assert cosine_distance(*views).item() == pytest.approx(np.mean(distances), rel=1e-5)


def test_closed_forms(views):
    z, _ = views
    assert cosine_distance(z, 3 * z).item() == pytest.approx(0, abs=1e-6)
    assert cosine_distance(z, -z).item() == pytest.approx(2)
    assert cosine_distance(torch.eye(4), torch.eye(4).roll(1, 0)).item() == pytest.approx(1)


def test_rotation_and_lengths_do_not_matter(views):
    rotation = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(1)))[0]
    torch.testing.assert_close(cosine_distance(5 * views[0] @ rotation, views[1] @ rotation), cosine_distance(*views))


def test_gradient(views):
    assert_gradient(cosine_distance, views)


def test_both_views_are_held_each_at_its_own_sentence(views):
    """Below the projection head: z is not looked at."""
    guide = torch.randn(20, 12, generator=torch.Generator().manual_seed(5))
    term = Distillation(distillation_weight=2.0)
    term.prepare(SimpleNamespace(lookup=lambda rows: guide[rows]))
    row1, row2 = torch.arange(7), torch.arange(7) + 9
    seen = Views(torch.zeros(7, 3), torch.zeros(7, 3), torch.ones(7, 4), *views, row1, row2)
    expected = (cosine_distance(views[0], guide[:7]) + cosine_distance(views[1], guide[9:16])) / 2
    torch.testing.assert_close(term.loss(seen)["distillation"], expected)


def test_general_sentences_are_held_apart_from_the_batch(views):
    guide = torch.randn(20, 12, generator=torch.Generator().manual_seed(5))
    term = Replay(replay_weight=2.0)
    term.prepare(SimpleNamespace(lookup=lambda rows: guide[rows]))
    general, row = torch.randn(3, 12, generator=torch.Generator().manual_seed(8)), torch.tensor([4, 19, 0])
    seen = Views(*views, torch.ones(7, 4), *views, general=general, general_row=row)
    torch.testing.assert_close(term.loss(seen)["replay"], cosine_distance(general, guide[row]))


def test_a_number_of_sentences_that_cannot_be():
    with pytest.raises(UsageError, match="`replay_size` is 0; needed 1 or more"):
        Replay(replay_size=0)
    with pytest.raises(UsageError, match="`neighbor_count` is 0; needed 1 or more"):
        Neighborhood(neighbor_count=0)
