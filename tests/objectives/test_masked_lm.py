"""Masked language modelling four ways: a plain numpy loop, a closed form, an invariance, an error."""

import numpy as np
import pytest
import torch

from informin.objectives.masked_lm import masked_lm


def test_numpy_loop():
    logits = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([3, 0, 8, 8, 1, 5])
    total = 0.0
    for row, label in zip(logits.double().numpy(), labels.tolist()):
        total -= row[label] - np.log(np.exp(row).sum())
    assert masked_lm(logits, labels).item() == pytest.approx(total / 6, rel=1e-5)


def test_closed_form_know_nothing():
    assert masked_lm(torch.zeros(4, 50), torch.arange(4)).item() == pytest.approx(np.log(50), rel=1e-6)


def test_a_constant_added_to_the_logits_does_not_matter():
    logits = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(6)
    torch.testing.assert_close(masked_lm(logits + 5, labels), masked_lm(logits, labels))


def test_nothing_masked_is_zero_and_has_a_gradient():
    logits = torch.zeros(0, 9, requires_grad=True)
    loss = masked_lm(logits, torch.zeros(0, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0 and logits.grad.shape == (0, 9)


def test_label_outside_the_vocabulary_is_an_error():
    with pytest.raises(IndexError, match="out of bounds"):
        masked_lm(torch.zeros(1, 9), torch.tensor([9]))
