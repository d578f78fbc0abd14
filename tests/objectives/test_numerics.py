"""Means over anchors computed in blocks: same value and gradient, and no similarities in memory."""

from functools import partial

import pytest
import torch

from informin.objectives import numerics
from informin.objectives.contrast import contrast
from informin.objectives.guided_similarity import guided_similarity

N = 11
DRAW = torch.Generator().manual_seed(1)
Z1, Z2, GUIDE1, GUIDE2 = (torch.randn(N, 6, generator=DRAW) for _ in range(4))
QUEUE = torch.randn(5, 6, generator=DRAW)
QUEUE[3] = 0
NEAR, IN_QUEUE = torch.rand(N, N, generator=DRAW).round(decimals=1), torch.rand(N, 5, generator=DRAW) < 0.3
LOSSES = {
    "contrast": contrast,
    "queue": partial(contrast, queue=QUEUE, queue_false_negatives=IN_QUEUE),
    "near": partial(contrast, negative_weights=NEAR),
    "guided similarity": partial(guided_similarity, guide1=GUIDE1, guide2=GUIDE2),
}


def of(loss) -> tuple[torch.Tensor, ...]:
    """The value and its gradient."""
    views = [z.clone().requires_grad_() for z in (Z1, Z2)]
    value = loss(*views)
    return value.detach(), *torch.autograd.grad(value, views)


@pytest.mark.parametrize("name", LOSSES)
def test_blocks_give_the_value_and_gradient_of_the_full_batch(monkeypatch, name):
    whole = of(LOSSES[name])
    monkeypatch.setattr(numerics, "ANCHORS", 4)  # 4, 4 and 3
    for one, other in zip(of(LOSSES[name]), whole):
        torch.testing.assert_close(one, other)


def test_blocks_store_no_full_similarity_matrix(monkeypatch):
    shapes = set()
    views = [z.clone().requires_grad_() for z in (Z1, Z2)]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: shapes.add(tuple(x.shape)) or x, lambda x: x):
        contrast(*views)
        assert (N, N) in shapes
        shapes.clear()
        monkeypatch.setattr(numerics, "ANCHORS", 4)
        contrast(*views)
    assert shapes and not {(4, N), (3, N)} & shapes
