"""False negatives: which pairs they are, and the contrast without them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from informin.objectives.contrast import Contrast, contrast
from informin.objectives.false_negatives import FalseNegatives, false_negative_mask
from informin.objectives.terms import Views
from tests.conftest import raises_usage
from tests.objectives.conftest import assert_gradient


def near(size=7):
    """Return a symmetric mask of near pairs, including each sentence with itself."""
    pairs = torch.rand(size, size, generator=torch.Generator().manual_seed(4)) > 0.6
    return pairs | pairs.T | torch.eye(size, dtype=torch.bool)


def test_numpy_loop(views):
    z1, z2 = (normalize(z.double(), dim=-1).numpy() for z in views)
    left_out, total = near().numpy(), 0.0
    for i in range(len(z1)):
        kept = [k for k in range(len(z2)) if k == i or not left_out[i, k]]
        scores = {k: np.exp(z1[i] @ z2[k] / 0.2) for k in kept}
        total -= np.log(scores[i] / sum(scores.values()))
    assert contrast(*views, 0.2, false_negatives=near()).item() == pytest.approx(total / len(z1), rel=1e-5)


def test_queue_entries_are_not_masked(views):
    queue = torch.randn(5, 12, generator=torch.Generator().manual_seed(2))
    everything = torch.ones(7, 7, dtype=torch.bool)
    z1, z2, further = (normalize(z.double(), dim=-1).numpy() for z in (*views, queue))
    own = np.exp((z1 * z2).sum(-1) / 0.2)
    expected = -np.log(own / (own + np.exp(z1 @ further.T / 0.2).sum(-1))).mean()
    assert contrast(*views, 0.2, queue, false_negatives=everything).item() == pytest.approx(expected, rel=1e-5)


def test_closed_form_without_any_negative():
    """Only the positive is left, so the loss is 0."""
    z = torch.eye(5)
    assert contrast(z, z, false_negatives=torch.ones(5, 5, dtype=torch.bool)).item() == 0


def test_gradient(views):
    assert_gradient(lambda z1, z2: contrast(z1, z2, 0.5, false_negatives=near()), views)


def test_pairs_above_the_threshold():
    guide = normalize(torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]), dim=-1)
    expected = [[True, True, False], [True, True, True], [False, True, True]]
    assert false_negative_mask(guide, guide, 0.7).tolist() == expected
    assert false_negative_mask(guide, guide.flip(0), 0.7).tolist() == [row[::-1] for row in expected]


def test_term_passes_false_negatives_to_the_contrast(views):
    guide = torch.nn.functional.normalize(torch.randn(20, 5, generator=torch.Generator().manual_seed(5)), dim=-1)
    term, seen = (
        FalseNegatives(false_negative_fraction=0.25),
        Views(*views, torch.ones(7, 4), row1=torch.arange(7), row2=torch.arange(7) + 9),
    )
    asked = []
    term.prepare(SimpleNamespace(lookup=lambda rows: guide[rows], quantile=lambda share: asked.append(share) or 0.1))
    term.add_to(seen)
    assert (
        asked == [0.25] and torch.equal(seen.false_negatives, guide[:7] @ guide[9:16].T > 0.1) and term.loss(seen) == {}
    )
    torch.testing.assert_close(
        Contrast().loss(seen)["contrast"], contrast(*views, false_negatives=seen.false_negatives)
    )


@pytest.mark.parametrize(
    "fraction, needed", [(-0.1, "0 or more"), (1, "a fraction below 1"), (1.5, "a fraction below 1")]
)
def test_invalid_fractions_are_rejected(fraction, needed):
    with raises_usage(option="false_negative_fraction", found=f"is {fraction}", needed=needed):
        FalseNegatives(false_negative_fraction=fraction)
