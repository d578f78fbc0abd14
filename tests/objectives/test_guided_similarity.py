"""Guided similarity: a loop of the formula, closed forms, invariances, errors."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from informin.objectives.guided_similarity import GuidedSimilarity, guided_similarity
from informin.objectives.term import Views
from tests.conftest import raises_usage
from tests.objectives.conftest import assert_gradient


@pytest.fixture
def guides():
    """Return a guide's embeddings (7, 5) of the two views, of another dimension."""
    generator = torch.Generator().manual_seed(6)
    return torch.randn(7, 5, generator=generator), torch.randn(7, 5, generator=generator)


def test_numpy_loop(views, guides):
    z1, z2, g1, g2 = (normalize(x.double(), dim=-1).numpy() for x in (*views, *guides))
    total = 0.0
    for i in range(7):
        others = [k for k in range(7) if k != i]
        taught = np.array([np.exp(g1[i] @ g2[k] / 0.3) for k in others])
        shares = np.array([np.exp(z1[i] @ z2[k] / 0.7) for k in others])
        total -= (taught / taught.sum() * np.log(shares / shares.sum())).sum()
    assert guided_similarity(*views, *guides, 0.7, 0.3).item() == pytest.approx(total / 7, rel=1e-5)


def test_closed_form_equal_embeddings():
    """All candidates are equally near: the log of their number, for any guide."""
    z, guide = torch.ones(8, 4), torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    assert guided_similarity(z, z, guide, guide).item() == pytest.approx(np.log(7), rel=1e-5)


def test_minimum_is_at_the_similarities_of_the_guide(views):
    """At equal temperatures, an encoder that equals its guide has no gradient."""
    z1 = views[0].clone().requires_grad_()
    guided_similarity(z1, z1, views[0], views[0], 0.5, 0.5).backward()
    torch.testing.assert_close(z1.grad, torch.zeros_like(z1), atol=1e-5, rtol=0)


def test_lower_guide_temperature_sharpens_the_target():
    """Three vectors in a plane, the first nearer to the second than to the third."""
    angles = torch.tensor([0.0, 0.5, 1.2])
    fixed = torch.stack([angles.cos(), angles.sin()], dim=-1)
    z = fixed.clone().requires_grad_()
    guided_similarity(z, fixed, fixed, fixed, 0.5, 0.1).backward()
    first = normalize(fixed - 0.1 * z.grad, dim=-1)[0]
    assert first @ fixed[1] - first @ fixed[2] > fixed[0] @ fixed[1] - fixed[0] @ fixed[2]


def test_lengths_and_rotations_do_not_matter(views, guides):
    rotation = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(1)))[0]
    other = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(1)))[0]
    rotated = guided_similarity(2 * views[0] @ rotation, views[1] @ rotation, guides[0] @ other, 3 * guides[1] @ other)
    torch.testing.assert_close(rotated, guided_similarity(*views, *guides), atol=1e-4, rtol=1e-4)


def test_gradient(views, guides):
    assert_gradient(lambda z1, z2: guided_similarity(z1, z2, *guides, 0.5, 0.3), views)


def test_errors():
    with raises_usage():
        guided_similarity(*[torch.eye(2)] * 4)
    for name in ("student_temperature", "guide_temperature"):
        with raises_usage(option=name):
            GuidedSimilarity(**{name: 0})


class Places:
    """A guide whose embeddings show whether they are neighborhood means."""

    def __init__(self, embeddings):
        self.embeddings, self.dimensions = embeddings, embeddings.shape[1]

    def lookup(self, rows, device):
        return self.embeddings[rows]

    def neighborhood_means(self, k):
        return Places(self.embeddings.roll(k, dims=0))


def test_guided_neighbors_uses_neighborhood_means(views, guides):
    guide = Places(guides[0])
    rows = np.arange(len(guides[0]))
    seen = Views(z1=views[0], z2=views[1], mask=None, row=rows)
    for k, taught in ((0, guides[0]), (2, guides[0].roll(2, dims=0))):
        term = GuidedSimilarity(neighbors=k)
        term.prepare(guide)
        torch.testing.assert_close(term.loss(seen), guided_similarity(*views, taught, taught))
    with raises_usage(option="guided_neighbors"):
        GuidedSimilarity(neighbors=-1)
