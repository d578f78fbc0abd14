"""False negatives: which pairs they are, and the contrast with a lower weight for them."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from informin.objectives.contrast import Contrast, batch_threshold, contrast, false_negative_mask
from informin.objectives.term import Views
from tests.conftest import raises_usage
from tests.objectives.conftest import assert_gradient

MODEL_NEAR = partial(Contrast, false_negative_similarity="model")


def near(size=7):
    """Return a symmetric mask of near pairs, including each sentence with itself."""
    pairs = torch.rand(size, size, generator=torch.Generator().manual_seed(4)) > 0.6
    return pairs | pairs.T | torch.eye(size, dtype=torch.bool)


def random_weights(size=7):
    return torch.rand(size, size, generator=torch.Generator().manual_seed(6))


def unit(view):
    return normalize(view.double(), dim=-1).numpy()


@pytest.mark.parametrize("weights", [random_weights(), (~near()).float()], ids=["weights", "left out"])
def test_numpy_loop(views, weights):
    z1, z2, w, total = unit(views[0]), unit(views[1]), weights.double().numpy(), 0.0
    for i in range(len(z1)):
        scores = [np.exp(z1[i] @ z2[k] / 0.2) * (1 if k == i else w[i, k]) for k in range(len(z2))]
        total -= np.log(scores[i] / sum(scores))
    assert contrast(*views, 0.2, negative_weights=weights).item() == pytest.approx(total / len(z1), rel=1e-5)


def test_gradient_is_the_weighted_softmax(views):
    """With unit vectors u: d loss / d u1_i = sum_k (q_ik - [k = i]) u2_k / (N tau), q_ik = w_ik exp(s_ik) / sum."""
    weights, tau = random_weights(), 0.3
    u1, u2, w = unit(views[0]), unit(views[1]), weights.double().numpy()
    np.fill_diagonal(w, 1)
    q = w * np.exp(u1 @ u2.T / tau)
    q /= q.sum(1, keepdims=True)
    slope = (q - np.eye(7)) / (7 * tau)  # d loss / d cos
    leaves = [torch.from_numpy(u).requires_grad_() for u in (u1, u2)]
    contrast(*leaves, tau, negative_weights=weights).backward()
    for leaf, expected, u in zip(leaves, (slope @ u2, slope.T @ u1), (u1, u2)):
        tangent = expected - (expected * u).sum(1, keepdims=True) * u  # the normalization removes the radial part
        np.testing.assert_allclose(leaf.grad.numpy(), tangent, rtol=1e-4, atol=1e-6)


def test_weights_of_one_change_nothing_and_small_ones_approach_the_mask(views):
    torch.testing.assert_close(contrast(*views, negative_weights=torch.ones(7, 7)), contrast(*views))
    left_out = contrast(*views, 0.2, negative_weights=(~near()).float())
    tiny = contrast(*views, 0.2, negative_weights=torch.where(near(), 1e-9, 1.0))
    torch.testing.assert_close(tiny, left_out)
    assert left_out < contrast(*views, 0.2, negative_weights=torch.where(near(), 0.5, 1.0)) < contrast(*views, 0.2)


def test_queue_entries_keep_their_weight(views):
    queue = torch.randn(5, 12, generator=torch.Generator().manual_seed(2))
    z1, z2, further = (unit(z) for z in (*views, queue))
    own = np.exp((z1 * z2).sum(-1) / 0.2)
    expected = -np.log(own / (own + np.exp(z1 @ further.T / 0.2).sum(-1))).mean()
    value = contrast(*views, 0.2, queue, negative_weights=torch.zeros(7, 7))
    assert value.item() == pytest.approx(expected, rel=1e-5)


def test_closed_form_without_any_negative():
    """Only the positive is left, so the loss is 0."""
    z = torch.eye(5)
    assert contrast(z, z, negative_weights=torch.zeros(5, 5)).item() == 0


def test_gradient_of_left_out_negatives(views):
    assert_gradient(lambda z1, z2: contrast(z1, z2, 0.5, negative_weights=(~near()).float()), views)


def test_pairs_above_the_threshold():
    guide = normalize(torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]), dim=-1)
    expected = [[True, True, False], [True, True, True], [False, True, True]]
    assert false_negative_mask(guide, guide, 0.7).tolist() == expected
    assert false_negative_mask(guide, guide.flip(0), 0.7).tolist() == [row[::-1] for row in expected]


@pytest.mark.parametrize("fraction, pairs", [(0, 0), (0.02, 0), (0.25, 10), (0.99, 41)])
def test_threshold_of_a_batch(views, fraction, pairs):
    """Of 7 x 6 pairs of different sentences."""
    z1, z2 = (normalize(z, dim=-1) for z in views)
    mask = false_negative_mask(z1, z2, batch_threshold(z1, z2, fraction)) & ~torch.eye(7, dtype=torch.bool)
    assert mask.sum() == pairs
    cosines = z1 @ z2.T
    others = cosines[~mask & ~torch.eye(7, dtype=torch.bool)]
    assert not pairs or cosines[mask].min() > others.max()


def test_copies_do_not_count_as_pairs(views):
    """They are left out anyway, and would use up the fraction."""
    z1, z2 = (torch.cat([z, z[:2]]) for z in views)
    copied = torch.eye(9, dtype=torch.bool)
    copied[[0, 7, 1, 8], [7, 0, 8, 1]] = True
    seen = Views(z1, z2, torch.ones(9, 4), negatives=~copied)
    weights = Contrast(false_negative_fraction=0.25, false_negative_similarity="model")._negative_weights(seen)
    assert ((weights == 0) & ~copied).sum() == int(0.25 * (~copied).sum())
    same = torch.ones(3, 3, dtype=torch.bool)
    assert batch_threshold(z1[:3], z2[:3], 0.5, same) == torch.inf, "one sentence, three times"


def test_guide_determines_the_weights(views):
    guide = normalize(torch.randn(20, 5, generator=torch.Generator().manual_seed(5)), dim=-1)
    term = Contrast(false_negative_fraction=0.25, false_negative_weight=0.3)
    seen = Views(*views, torch.ones(7, 4), row=np.arange(7) + 9)
    asked = []
    cached = SimpleNamespace(lookup=lambda rows, device: guide[rows], quantile=lambda share: asked.append(share) or 0.1)
    term.prepare(cached)
    expected = torch.where(guide[9:16] @ guide[9:16].T > 0.1, 0.3, 1.0)
    assert asked == [0.25] and torch.equal(term.loss(seen), contrast(*views, negative_weights=expected))


def test_model_determines_the_weights_without_a_gradient(views):
    z1, z2 = (view.clone().requires_grad_() for view in views)
    term = MODEL_NEAR(false_negative_fraction=0.25, false_negative_weight=0.3)
    assert term.guide_needs is None
    weights = term._negative_weights(Views(z1, z2, torch.ones(7, 4)))
    others = ~torch.eye(7, dtype=torch.bool)
    assert not weights.requires_grad and (weights[others] < 1).sum() == 10


def test_copies_stay_left_out(views):
    negatives = torch.ones(7, 7, dtype=torch.bool)
    negatives[0, 1] = False
    seen = Views(*views, torch.ones(7, 4), negatives=negatives)
    weights = MODEL_NEAR(false_negative_fraction=0.99, false_negative_weight=0.5)._negative_weights(seen)
    assert weights[0, 1] == 0 and set(weights.flatten().tolist()) == {0, 0.5, 1}


@pytest.mark.parametrize("name", ["false_negative_fraction", "false_negative_weight"])
@pytest.mark.parametrize("value", [-0.1, 1, 1.5])
def test_invalid_values_are_rejected(name, value):
    with raises_usage(option=name):
        Contrast(**{name: value})
