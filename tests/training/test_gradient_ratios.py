"""The gradient ratio of each term in the first step: closed forms, and weights that do not depend on it."""

import math

import pytest
import torch

from informin.objectives.contrast import contrast
from informin.objectives.decorrelation import self_contrast
from informin.objectives.reconstruction import reconstruction
from informin.training.callbacks import gradient_ratios
from tests.fast.test_cpu_threads import cores
from tests.training.helpers import assert_same, weights_of

PAIRS, COSINE, WEIGHT, TEMPERATURE = 4, 0.6, 0.4, 0.2


@pytest.fixture
def projection():
    """Views 1 and 2 with the cosine 0.6 in each pair and 0 elsewhere, of different lengths, and a further row."""
    rows, sine = torch.eye(2 * PAIRS), math.sqrt(1 - COSINE**2)
    views = torch.cat([rows[::2], COSINE * rows[::2] + sine * rows[1::2], torch.ones(1, 2 * PAIRS)])
    return (views * torch.linspace(0.5, 2, len(views))[:, None]).requires_grad_()


@pytest.mark.parametrize("form, slope", [("code", 4 * WEIGHT / (2 * PAIRS)), ("unit", 2 * WEIGHT)])
def test_pull_on_the_positive_pairs_in_closed_form(projection, form, slope):
    z1, z2 = projection[:PAIRS], projection[PAIRS : 2 * PAIRS]
    losses = {
        "contrast": contrast(z1, z2, TEMPERATURE),
        "reconstruction": WEIGHT * reconstruction(z1, z2, form),
        "self_contrast": 0.3 * self_contrast(z1, z2),
    }
    probability = math.exp(COSINE / TEMPERATURE) / (math.exp(COSINE / TEMPERATURE) + PAIRS - 1)
    pull = (1 - probability) / TEMPERATURE
    found = gradient_ratios(losses, projection, PAIRS, [])
    assert found["reconstruction"] == (pytest.approx(slope / pull, rel=1e-4), True)
    assert found["self_contrast"] == (pytest.approx(-0.3 / pull, rel=1e-4), True), "it pushes the views apart"
    assert sum(losses.values()).backward() is None and projection.grad is not None, "the graph is still there"


def test_a_term_that_does_not_read_the_projections_is_compared_by_the_weights(projection):
    weights, bias = torch.linspace(1, 2, 2 * PAIRS).requires_grad_(), torch.ones(1, requires_grad=True)
    z = projection * weights
    losses = {"contrast": contrast(z[:PAIRS], z[PAIRS : 2 * PAIRS]), "mlm": 3 * weights.square().sum() + bias.sum()}
    (gradient,) = torch.autograd.grad(losses["contrast"], weights, retain_graph=True)
    found = gradient_ratios(losses, z, PAIRS, [weights, bias])
    assert found == {"mlm": (pytest.approx((6 * weights).norm().item() / gradient.norm().item(), rel=1e-5), False)}
    assert gradient_ratios(losses, z, PAIRS, []) == {}


@pytest.mark.parametrize("options", [{}, dict(attention_mi_weight=0.1)], ids=["packed", "with maps"])
def test_the_measurement_changes_no_bit_and_is_printed(build, options, capsys):
    options = (
        dict(objective="informin", mlm_weight=0.1, reconstruction_weight=0.4, eval_strategy="no", save_strategy="no")
        | options
    )
    trained = []
    for measured in (True, False):
        trainer = build(**options)
        trainer.gradient_ratios.is_on = measured
        with cores(2):  # whose packed layers keep their own graphs
            trainer.train()
        trained.append(weights_of(trainer))
        lines = [line for line in capsys.readouterr().out.splitlines() if "contrast's pull" in line]
        assert len(lines) == measured and all(line.startswith("step 1  reconstruction ") for line in lines)
        assert all("mlm" in line and ("attention_mi" in line) == ("attention_mi_weight" in options) for line in lines)
    assert_same(*trained)
