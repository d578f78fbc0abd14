"""Embedding distillation and replay: numpy loop, closed forms, invariance, gradient, errors."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from informin.objectives.distillation import Distillation, Replay, cosine_distance
from informin.objectives.term import Views
from tests.conftest import raises_usage
from tests.objectives.conftest import assert_gradient


def test_numpy_loop(views):
    x, guide = (z.double().numpy() for z in views)
    distances = [1 - a @ b / np.sqrt((a @ a) * (b @ b)) for a, b in zip(x, guide)]
    assert cosine_distance(*views).item() == pytest.approx(np.mean(distances), rel=1e-5)


def test_closed_forms(views):
    z, _ = views
    assert cosine_distance(z, 3 * z).item() == pytest.approx(0, abs=1e-5)
    assert cosine_distance(z, -z).item() == pytest.approx(2, rel=1e-5)
    assert cosine_distance(torch.eye(4), torch.eye(4).roll(1, 0)).item() == pytest.approx(1, rel=1e-5)


def test_invariant_to_rotation_and_scale(views):
    rotation = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(1)))[0]
    torch.testing.assert_close(cosine_distance(5 * views[0] @ rotation, views[1] @ rotation), cosine_distance(*views))


def test_gradient(views):
    assert_gradient(cosine_distance, views)


def test_each_view_is_compared_with_the_guide_embedding_of_its_own_sentence(views):
    """The term uses the embeddings below the projection head, so z1 and z2 do not matter."""
    guide = torch.randn(20, 12, generator=torch.Generator().manual_seed(5))
    term = Distillation(weight=2.0)
    term.prepare(SimpleNamespace(lookup=lambda rows, device: guide[rows]))
    seen = Views(torch.zeros(7, 3), torch.zeros(7, 3), torch.ones(7, 4), *views, np.arange(7) + 9)
    expected = (cosine_distance(views[0], guide[9:16]) + cosine_distance(views[1], guide[9:16])) / 2
    torch.testing.assert_close(term.loss(seen), expected)


def test_replay_uses_only_the_general_sentences(views):
    guide = torch.randn(20, 12, generator=torch.Generator().manual_seed(5))
    term = Replay(weight=2.0)
    term.prepare(SimpleNamespace(lookup=lambda rows, device: guide[rows]))
    general = torch.randn(3, 12, generator=torch.Generator().manual_seed(8))
    row = np.array([4, 19, 0])
    seen = Views(*views, torch.ones(7, 4), *views, general=general, general_row=row)
    torch.testing.assert_close(term.loss(seen), cosine_distance(general, guide[row]))


def test_replay_size_must_be_positive():
    with raises_usage(option="replay_size"):
        Replay(size=0)
