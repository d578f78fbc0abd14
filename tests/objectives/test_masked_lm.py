"""Masked language modeling: a numpy loop, a closed form, an empty batch. tests/test_modeling.py tests the labels."""

import numpy as np
import pytest
import torch

from informin.objectives.masked_lm import masked_lm


def test_numpy_loop():
    losses = torch.rand(6, generator=torch.Generator().manual_seed(0))
    total = 0.0
    for loss in losses.double().numpy():
        total += loss
    assert masked_lm(losses).item() == pytest.approx(total / 6, rel=1e-5)


def test_closed_form_uniform_prediction():
    assert masked_lm(torch.full((4,), float(np.log(50)))).item() == pytest.approx(np.log(50), rel=1e-5)


def test_nothing_masked_is_zero_and_has_a_gradient():
    losses = torch.zeros(0, requires_grad=True)
    loss = masked_lm(losses)
    loss.backward()
    assert loss.item() == 0 and losses.grad.shape == (0,)
