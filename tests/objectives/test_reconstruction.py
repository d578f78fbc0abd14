"""Reconstruction: a numpy loop of each form, closed forms, invariances, errors."""

import numpy as np
import pytest
import torch

from informin.objectives.reconstruction import FORMS, reconstruction
from tests.conftest import raises_usage
from tests.objectives.conftest import assert_gradient


def test_numpy_loops(views):
    z1, z2 = (z.double().numpy() for z in views)
    n, d = z1.shape
    squared = unit = code = 0.0
    for a, b in zip(z1, z2):
        squared += sum((a[j] - b[j]) ** 2 for j in range(d)) / n
        u, v = a / np.sqrt(np.dot(a, a)), b / np.sqrt(np.dot(b, b))
        unit += sum((u[j] - v[j]) ** 2 for j in range(d)) / n
        code += sum((u[j] - v[j]) ** 2 + (v[j] - u[j]) ** 2 for j in range(d)) / (n * d)
    assert reconstruction(*views, "paper").item() == pytest.approx(squared, rel=1e-5)
    assert reconstruction(*views, "unit").item() == pytest.approx(unit, rel=1e-5)
    assert reconstruction(*views, "code").item() == pytest.approx(code, rel=1e-5)


def test_closed_forms_in_the_cosine(views):
    """2 (1 - cos) and 4 (1 - cos) / d: at d = 12, the second is 6 times smaller."""
    z1, z2 = views
    distance = 1 - torch.cosine_similarity(z1, z2).mean()
    torch.testing.assert_close(reconstruction(z1, z2, "unit"), 2 * distance)
    torch.testing.assert_close(reconstruction(z1, z2, "code"), 4 * distance / 12)


@pytest.mark.parametrize("form", FORMS)
def test_minimizing_pulls_the_views_together(views, form):
    """With the sign printed in the paper, it would push them apart."""
    z1, z2 = views[0].clone().requires_grad_(), views[1]
    reconstruction(z1, z2, form).backward()
    moved = z1 - 0.1 * z1.grad
    assert torch.cosine_similarity(moved, z2).mean() > torch.cosine_similarity(z1, z2).mean()


@pytest.mark.parametrize("form", FORMS)
def test_symmetric_and_zero_for_identical_views(views, form):
    torch.testing.assert_close(reconstruction(*views, form), reconstruction(*views[::-1], form))
    assert reconstruction(views[0], views[0], form).item() == 0


def test_only_the_raw_form_depends_on_the_length(views):
    z1, z2 = views
    half = {form: reconstruction(z1 / 2, z2 / 2, form) for form in FORMS}
    full = {form: reconstruction(z1, z2, form) for form in FORMS}
    torch.testing.assert_close(half["paper"], full["paper"] / 4)
    torch.testing.assert_close(half["unit"], full["unit"])
    torch.testing.assert_close(half["code"], full["code"])


def test_unknown_form_is_an_error(views):
    with raises_usage(option="form"):
        reconstruction(*views, "l1")


@pytest.mark.parametrize("form", FORMS)
def test_gradients_by_finite_differences(views, form):
    assert_gradient(lambda z1, z2: reconstruction(z1, z2, form), views)
