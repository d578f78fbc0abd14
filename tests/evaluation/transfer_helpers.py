"""scikit-learn's logistic regression as a reference."""

import warnings

import numpy as np
from sklearn import config_context
from sklearn.linear_model import LogisticRegression

NESTED = [2.0**t for t in range(-2, 4)]  # SentEval's grids


def fitted(x, targets, c: float) -> LogisticRegression:
    """Return scikit-learn's optimum at float64 precision."""
    with warnings.catch_warnings(), config_context(assume_finite=True, skip_parameter_validation=True):
        warnings.simplefilter("ignore")  # it may say that digits are lost, near the optimum
        solver = "newton-cholesky" if x.shape[1] < 50 else "lbfgs"
        return LogisticRegression(C=c, tol=1e-10, max_iter=10_000, solver=solver).fit(x.astype(np.float64), targets)
