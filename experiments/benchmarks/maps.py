"""Closed-form maps of embeddings that benchmarks compare, each a scikit-learn transformer."""

from collections.abc import Callable

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import PRESETS
from informin.evaluation.geometry import unit


class SpectralMap(TransformerMixin, BaseEstimator):
    """Center unit vectors, then scale their principal directions.

    Args:
        power: Exponent of the singular values: 0 for centering alone, -0.3 for partial whitening, -1 for whitening (Su
            et al., 2021).
        removed: Number of leading directions to remove: all-but-the-top (Mu & Viswanath, 2018).
    """

    def __init__(self, power: float = 0.0, removed: int = 0):
        self.power = power
        self.removed = removed

    def fit(self, X, y=None) -> "SpectralMap":
        """Fit on embeddings (n, d)."""
        x = unit(np.asarray(X, np.float64))
        self.mean_ = x.mean(0)
        _, values, directions = np.linalg.svd(x - self.mean_, full_matrices=False)
        scale = np.where(values > 1e-6 * values[0], np.maximum(values, 1e-12) ** self.power, 0.0)
        scale[: self.removed] = 0
        self.matrix_ = (directions.T * scale) @ directions
        return self

    def transform(self, X) -> np.ndarray:
        """Return mapped embeddings (n, d) of unit length."""
        return unit((unit(np.asarray(X, np.float64)) - self.mean_) @ self.matrix_)


MAPS: dict[str, Callable[[], LinearAdapter | SpectralMap]] = {
    "centering": SpectralMap,
    "partial whitening": lambda: SpectralMap(-0.3),
    "whitening (Su et al.)": lambda: SpectralMap(-1.0),
    "all-but-the-top": lambda: SpectralMap(removed=3),
    "without mean direction": lambda: LinearAdapter(whitening=0.0, self_weight=1.0),
    "within-neighborhood whitening alone": lambda: LinearAdapter(self_weight=1.0),
    "LinearAdapter, documents": lambda: LinearAdapter(**PRESETS["documents"]),
    "LinearAdapter, short_texts": lambda: LinearAdapter(**PRESETS["short_texts"]),
}
