"""Virtual augmentation: a loop, the numerical maximum of the perturbation, and what each form trains."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from informin.objectives import VirtualAugmentation
from informin.objectives.virtual_augmentation import Perturbation, hardest_direction, virtual_augmentation
from tests.conftest import raises_usage
from tests.objectives.conftest import assert_gradient, first_batch, without_dropout


def nearest(h, number):
    """Return the neighborhoods (N, N) of embeddings whose sentences all differ."""
    ids = torch.arange(len(h))
    return Perturbation(number, 1.0, 0.05, False).neighborhood(h, h, ids, ids)


def test_the_loss_is_a_loop_over_both_directions(views):
    f, perturbed = (normalize(x, dim=-1) for x in views)
    near, losses = nearest(f, 3), []
    assert near.sum(1).tolist() == [3] * 7 and not near.diagonal().any()
    for i in range(7):
        positive = math.exp(float(f[i] @ perturbed[i]) / 0.1)
        for anchor in (f[i], perturbed[i]):
            negatives = [math.exp(float(anchor @ x[k]) / 0.1) for k in near[i].nonzero()[:, 0] for x in (f, perturbed)]
            losses.append(-math.log(positive / (positive + sum(negatives))))
    assert virtual_augmentation(f, perturbed, near, 0.1).item() == pytest.approx(sum(losses) / 14, rel=1e-4)
    assert_gradient(lambda one, other: virtual_augmentation(one, other, near, 0.5), views)


def test_a_neighborhood_has_the_largest_dot_products_and_no_copies():
    h = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.5, 0.5], [2.0, 0.0]])
    find = Perturbation(2, 1.0, 0.05, False).neighborhood
    assert find(h, h, torch.arange(4), torch.arange(4))[0].tolist() == [False, True, False, True]
    ids = torch.tensor([0, 1, 2, 0])
    assert find(h, h, ids, ids)[0].tolist() == [False, True, True, False]
    ids = torch.tensor([0, 1, 0, 0])
    assert find(h, h, ids, ids)[0].tolist() == [False, True, False, False], "there are no others"


def test_the_direction_is_the_numerical_maximum_on_a_small_circle():
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(5, 2, generator=generator)
    layer = torch.nn.Linear(2, 3)
    f = normalize(layer(h), dim=-1).detach()
    near = nearest(h, 2)
    start = normalize(torch.randn(5, 2, generator=generator), dim=-1)
    found = hardest_direction(h, start, 1e-3, layer, f, near, temperature=0.2)
    angles = torch.linspace(0, 2 * math.pi, 721)[:-1]
    circle = torch.stack([angles.cos(), angles.sin()], dim=1)  # (A, 2)
    for i in range(5):
        perturbed = normalize(layer(h[i] + 1e-3 * circle), dim=-1).double()
        scores = (perturbed @ torch.cat([f[i : i + 1], f[near[i]]]).double().T) / 0.2
        losses = scores.logsumexp(1) - scores[:, 0]
        assert float(found[i].detach() @ circle[losses.argmax()]) > 0.999


@pytest.mark.parametrize("form", ["paper", "code"])
def test_the_form_of_the_code_trains_the_projection_head_alone(build, form):
    trainer = build(objective="noncontrastive", virtual_augmentation_weight=1, virtual_augmentation_form=form)
    rows = first_batch(trainer)
    trainer.compute_loss(without_dropout(trainer.model), rows).backward()
    trained = {name for name, x in trainer.model.named_parameters() if x.grad is not None and x.grad.any()}
    assert {"mlp.dense.weight", "mlp.dense.bias"} <= trained
    assert (len(trained) == 2) == (form == "code")


def test_the_form_of_the_code_needs_a_projection_head(build):
    options = dict(objective="simcse", virtual_augmentation_weight=1, virtual_augmentation_form="code")
    with raises_usage(option="virtual_augmentation_form"):
        build(**options, projection_head="none")


@pytest.mark.parametrize("field", ["neighbors", "perturbation_radius", "perturbation_temperature"])
def test_numbers_are_above_0(field):
    with raises_usage(option="virtual_augmentation_neighbors" if field == "neighbors" else field):
        VirtualAugmentation(**{field: 0})
