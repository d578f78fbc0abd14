"""The logistic regressions of transfer tasks compared with scikit-learn."""

import numpy as np
import pytest
import torch

from informin.evaluation.transfer import LogisticPath
from tests.evaluation.transfer_helpers import NESTED, fitted


def problem(rows: int = 120, width: int = 6, seed: int = 0, noise: float = 1.0):
    """Return features, targets (two in three positive) that a linear classifier can partly learn, and a generator."""
    source = np.random.default_rng(seed)
    x = source.normal(size=(rows, width)).astype(np.float32)
    signal = x @ source.normal(size=width) + noise * source.normal(size=rows)
    return x, signal > np.quantile(signal, 0.35), source


def training_sets(rows: int, count: int, source, share: float = 0.9) -> np.ndarray:
    return np.stack([source.random(rows) < share for _ in range(count)], axis=1)


def solved(x, targets, masks, grid) -> list[np.ndarray]:
    path = LogisticPath(*(torch.from_numpy(array) for array in (x, targets, masks)))
    return [path.decision_values(c).numpy() for c in grid]


def reference(x, targets, mask, c: float) -> np.ndarray:
    """Columns are centered, which changes only the intercept: scikit-learn is inaccurate with large offsets."""
    x = x.astype(np.float64) - x[mask].astype(np.float64).mean(0)
    return fitted(x[mask], targets[mask], c).decision_function(x)


def well_conditioned():
    x, y, source = problem()
    return x, y, training_sets(len(x), 4, source)


def one_wide_column_and_an_offset():
    x, y, source = problem()
    x[:, 0] *= 30
    return x + 100, y, training_sets(len(x), 4, source)


def a_far_offset():
    x, y, source = problem()
    return x + 3000, y, training_sets(len(x), 4, source)


def separable():
    x, y, source = problem(noise=0)
    return x, y, training_sets(len(x), 4, source)


def different_training_sets():
    """Return two disjoint halves and one tenth of the rows."""
    x, y, _ = problem()
    masks = np.zeros((len(x), 3), bool)
    masks[:60, 0] = masks[60:, 1] = masks[::10, 2] = True
    return x, y, masks


def rows_outside_every_training_set():
    """Like a test part. They are far from the other rows, so any influence would be visible."""
    x, y, source = problem()
    masks = training_sets(len(x), 3, source)
    masks[80:] = False
    x[80:] += 5000
    return x, y, masks


def tiny_training_sets():
    x, y, source = problem(rows=14)
    return x, y, training_sets(14, 4, source, 0.6)


def more_columns_than_rows():
    x, y, source = problem(rows=40, width=120)
    return x, y, training_sets(40, 3, source)


def equal_features():
    x, y, source = problem()
    return np.full_like(x, 3.3), y, training_sets(len(x), 3, source)


def constant_columns():
    x, y, source = problem()
    x[:, 2], x[:, 3] = 0, 5
    return x, y, training_sets(len(x), 3, source)


def equal_columns():
    x, y, source = problem(width=2)
    return np.repeat(x, 3, axis=1), y, training_sets(len(x), 3, source)


def huge_features():
    x, y, source = problem()
    return x * 1e4, y, training_sets(len(x), 3, source)


def tiny_features():
    x, y, source = problem()
    return x * 1e-4, y, training_sets(len(x), 3, source)


def one_outlier():
    x, y, source = problem()
    x[0] = 1e3
    return x, y, training_sets(len(x), 3, source)


def few_positives():
    x, y, source = problem(rows=200)
    y = np.arange(200) % 50 == 3
    return x, y, training_sets(200, 3, source)


@pytest.mark.parametrize(
    "case",
    [
        *(well_conditioned, one_wide_column_and_an_offset, a_far_offset, separable, different_training_sets),
        *(rows_outside_every_training_set, tiny_training_sets, more_columns_than_rows, equal_features),
        *(constant_columns, equal_columns, huge_features, tiny_features, one_outlier, few_positives),
    ],
    ids=lambda case: case.__name__,
)
def test_decision_values_equal_those_of_scikit_learn(case):
    x, y, masks = case()
    grid = [0.25, 1.0, 8.0, 32.0]
    for c, found in zip(grid, solved(x, y, masks, grid)):
        assert found.shape == (len(x), masks.shape[1]) and np.isfinite(found).all()
        for column, mask in enumerate(masks.T):
            expected = reference(x, y, mask, c)
            np.testing.assert_allclose(found[:, column], expected, rtol=2e-3, atol=2e-3)
            clear = np.abs(expected) > 2e-3
            assert ((found[:, column] > 0) == (expected > 0))[clear].all()


def test_huge_separable_features_are_classified_like_scikit_learn():
    """The objective is flat: decision values differ in size, but predictions are equal."""
    x, y, source = problem(noise=0)
    masks = training_sets(len(x), 3, source)
    for c, found in zip(NESTED, solved(x * 1e4, y, masks, NESTED)):
        expected = np.stack([reference(x * 1e4, y, mask, c) for mask in masks.T], axis=1)
        assert np.isfinite(found).all() and ((found > 0) == (expected > 0)).all()


def test_training_set_of_one_class_does_not_affect_others():
    """scikit-learn rejects it. Here its rows get that class, and other training sets are not affected."""
    x, y, source = problem()
    masks = training_sets(len(x), 4, source)
    masks[:, 0], masks[:, 1] = ~y, y
    path = NESTED[::3]
    for c, found in zip(path, solved(x, y, masks, path)):
        assert np.isfinite(found).all() and (found[~y, 0] < 0).all() and (found[y, 1] > 0).all()
        for column in (2, 3):
            np.testing.assert_allclose(found[:, column], reference(x, y, masks[:, column], c), rtol=2e-3, atol=2e-3)


def test_examples_of_one_class_have_finite_values():
    """All probabilities converge to 1, and the curvature to 0."""
    x, _, source = problem()
    for targets, sign in ((np.ones(len(x), bool), 1), (np.zeros(len(x), bool), -1)):
        values = np.array(solved(x, targets, training_sets(len(x), 3, source), [*NESTED[::3], 1e5]))
        assert np.isfinite(values).all() and (sign * values > 0).all()


def test_intercept_is_not_penalized():
    """With uninformative features, every value is the log odds of the training set, for every C."""
    y = np.arange(100) < 80
    values = solved(np.zeros((100, 3), np.float32), y, np.ones((100, 2), bool), [0.01, 1.0])
    np.testing.assert_allclose(values, np.log(80 / 20), rtol=1e-3)


def test_training_sets_are_solved_independently():
    x, y, masks = one_wide_column_and_an_offset()
    masks[:, 1] = True
    alone = solved(x, y, masks[:, 1:2], NESTED)
    for found, single in zip(solved(x, y, masks, NESTED), alone):
        np.testing.assert_allclose(found[:, 1:2], single, rtol=2e-3, atol=2e-3)
        assert np.abs(found[:, 0] - found[:, 1]).max() > 0.01


def test_values_keep_the_order_of_rows_and_do_not_depend_on_the_path():
    x, y, masks = well_conditioned()
    order = np.random.default_rng(1).permutation(len(x))
    found, again, permuted = (
        solved(*case, [0.25, 4.0]) for case in [(x, y, masks)] * 2 + [(x[order], y[order], masks[order])]
    )
    np.testing.assert_array_equal(found, again)
    np.testing.assert_allclose(np.array(found)[:, order], permuted, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(solved(x, y, masks, [4.0])[0], found[1], rtol=2e-3, atol=2e-3)
