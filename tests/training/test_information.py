"""The InfoNCE bound and the conditional entropy, alone and in the trainer."""

import math

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.covariance import oas

from informin.training.information import BOUND, ENTROPY, Information, conditional_entropy, infonce_bound, shrink
from informin.training.options import InforMinTrainingArguments
from tests.conftest import FOUR_STEPS, make_sentences, raises_usage
from trainer_informin import InforMinTrainer

DRAW = np.random.default_rng(0)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_bound_of_equal_views_and_of_candidates_that_are_all_alike():
    """The bound is log N if each anchor finds its own view, and 0 if it cannot."""
    assert infonce_bound(torch.eye(8), torch.eye(8), 0.01).item() == pytest.approx(math.log(8))
    assert infonce_bound(torch.eye(8), torch.ones(8, 8)).item() == pytest.approx(0, abs=1e-5)


def test_entropy_is_that_of_the_joint_minus_that_of_the_condition():
    root = DRAW.normal(size=(6, 6))
    covariance = root @ root.T + np.eye(6)
    joint, condition = (multivariate_normal(cov=part).entropy() for part in (covariance, covariance[3:, 3:]))
    assert conditional_entropy(torch.from_numpy(covariance)) == pytest.approx((joint - condition) / 3)


def test_entropy_in_closed_form():
    """Views with variance 1 and correlation r: the rest has variance 1 - r^2."""
    covariance = torch.eye(8, dtype=torch.float64) + 0.6 * torch.eye(8, dtype=torch.float64).roll(4, 0)
    expected = 0.5 * math.log(2 * math.pi * math.e * (1 - 0.36))
    assert conditional_entropy(covariance) == pytest.approx(expected)
    assert conditional_entropy(covariance / 4) == pytest.approx(expected - math.log(2)), "smaller vectors, less entropy"


@pytest.mark.parametrize("rows", [5, 40, 4000])
def test_shrinkage_is_oas(rows):
    x = DRAW.normal(size=(rows, 20)) @ DRAW.normal(size=(20, 20))
    expected, _ = oas(x)
    sample = torch.from_numpy(np.cov(x.T, bias=True))
    np.testing.assert_allclose(shrink(sample, rows).numpy(), expected, rtol=1e-9, atol=1e-9)


def test_fewer_rows_than_dimensions_have_a_finite_entropy():
    z1 = torch.randn(6, 32)
    information = Information()
    information.add(z1, z1 + 0.1 * torch.randn(6, 32))
    assert math.isfinite(information.pop(Accelerator(cpu=True))[ENTROPY])


def test_steps_are_accumulated_until_the_log_entry():
    steps = [(DRAW.normal(size=(7, 4)), DRAW.normal(size=(7, 4))) for _ in range(3)]
    information, accelerator = Information(0.2), Accelerator(cpu=True)
    for z1, z2 in steps:
        with torch.autocast("cpu", torch.bfloat16):
            information.add(torch.from_numpy(z1), torch.from_numpy(z2))
    found = information.pop(accelerator)
    rows = np.concatenate([np.hstack([unit(z1), unit(z2)]) for z1, z2 in steps])
    assert found[ENTROPY] == pytest.approx(conditional_entropy(torch.from_numpy(oas(rows)[0])), rel=1e-5)
    logits = [unit(z1) @ unit(z2).T / 0.2 for z1, z2 in steps]
    losses = [(logsumexp(own, axis=1) - np.diag(own)).mean() for own in logits]
    assert found[BOUND] == pytest.approx(math.log(7) - np.mean(losses), rel=1e-5)
    assert information.pop(accelerator) == {}


def test_views_that_share_more_have_a_higher_bound_and_less_entropy():
    z = torch.randn(500, 8)
    found = []
    for noise in (0.1, 0.5):
        information = Information()
        information.add(z, z + noise * torch.randn(500, 8))
        found.append(information.pop(Accelerator(cpu=True)))
    assert found[0][BOUND] > found[1][BOUND] and found[0][ENTROPY] < found[1][ENTROPY]


def trainer_of(folder, output_dir, **options):
    how = FOUR_STEPS | dict(eval_strategy="no", save_strategy="no", report_to=[], bf16=False, logging_steps=2) | options
    args = InforMinTrainingArguments(str(output_dir), measure_information=True, **how)
    return InforMinTrainer(str(folder), args, make_sentences(96))


@pytest.mark.parametrize("objective", ["simcse", "scd", "noncontrastive"])
def test_trainer_logs_both_with_the_loss(encoder, tmp_path, objective):
    own = {"scd": dict(projector_size=16), "noncontrastive": dict(reconstruction_weight=1)}.get(objective, {})
    trainer = trainer_of(encoder, tmp_path, objective=objective, **own)
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) == 2 and all(math.isfinite(entry[ENTROPY]) for entry in logged)
    size = trainer.args.per_device_train_batch_size
    if objective == "simcse":
        bounds = [math.log(size) - entry["terms/contrast"] for entry in logged]
        assert [entry[BOUND] for entry in logged] == pytest.approx(bounds, rel=1e-5)


def test_measuring_changes_no_weight(encoder, tmp_path):
    weights = []
    for folder, measured in (("a", True), ("b", False)):
        trainer = trainer_of(encoder, tmp_path / folder, objective="simcse")
        if not measured:
            trainer._information = None
        trainer.train()
        weights.append(trainer.model.state_dict())
    assert all(torch.equal(x, weights[1][name]) for name, x in weights[0].items())


def test_objectives_with_one_view_are_rejected():
    with raises_usage(option="measure_information", found="compares two views, and these terms use one"):
        InforMinTrainingArguments(objective="guided", guided_weight=1, measure_information=True, use_cpu=True)
