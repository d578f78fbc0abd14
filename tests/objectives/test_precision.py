"""Losses are computed in float32 under autocast."""

import pytest
import torch
from torch.nn.functional import normalize

from informin.objectives import numerics
from informin.objectives.contrast import batch_threshold, contrast, false_negative_mask
from informin.objectives.decorrelation import decorrelation, self_contrast
from informin.objectives.distillation import cosine_distance
from informin.objectives.guided_similarity import guided_similarity
from informin.objectives.reconstruction import reconstruction

LOSSES = {
    "contrast": lambda x, y: contrast(x, y),
    "weighted contrast": lambda x, y: contrast(x, y, negative_weights=torch.linspace(0, 1, 49).reshape(7, 7)),
    "contrast with a queue": lambda x, y: contrast(x, y, queue=y.flip(1)),
    "guided similarity": lambda x, y: guided_similarity(x, y, y, x),
    "decorrelation": lambda x, y: decorrelation(x, y, 0.01),
    "self-contrast": lambda x, y: self_contrast(x, y),
    "reconstruction": lambda x, y: reconstruction(x, y),
    "keep": lambda x, y: cosine_distance(x, y),
}


@pytest.mark.parametrize("anchors", [512, 4], ids=["at once", "by blocks"])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_value_and_gradient_are_the_same_under_autocast(views, loss, anchors, monkeypatch):
    monkeypatch.setattr(numerics, "ANCHORS", anchors)
    found = []
    for enabled in (False, True):
        x, y = (view.clone().requires_grad_() for view in views)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            value = loss(x, y)
        value.backward()
        found.append((value, x.grad, y.grad))
        assert value.dtype == torch.float32
    for plain, autocast in zip(*found):
        torch.testing.assert_close(autocast, plain, rtol=1e-5, atol=1e-6)


def test_false_negatives_are_the_same_under_autocast():
    guide = normalize(torch.randn(200, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    with torch.autocast("cpu", torch.bfloat16):
        found, threshold = false_negative_mask(guide, guide, 0.5), batch_threshold(guide, guide, 0.3)
    cosines = guide @ guide.T
    clear = (cosines - 0.5).abs() > 1e-5
    assert torch.equal(found[clear], cosines[clear] > 0.5)
    torch.testing.assert_close(threshold, batch_threshold(guide, guide, 0.3))
