"""LinearAdapter: an affine map of frozen embeddings, fitted in closed form without labels or training."""

import math
from copy import copy
from numbers import Integral, Real
from pathlib import Path

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data
from torch import Tensor

from informin.adapters.copies import copy_keys, first_copies
from informin.adapters.matrices import (
    mean_of_units,
    present,
    principal_axes,
    regression_matrix,
    rotation_for_bits,
    whitening_matrix,
    without_direction,
)
from informin.adapters.rows import CHUNK, finite_chunk, nearest_rows, neighbor_means, read_rows, unit_rows
from informin.adapters.scores import ScoreThreshold
from informin.errors import UsageError

ROTATIONS = ("principal", "bits")
DTYPES = (np.float64, np.float32, np.float16)  # that `transform` returns; others become the first
MEMORY_MAPPED = 10**6  # rows: larger arrays are read in chunks and never copied


class LinearAdapter(ScoreThreshold, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    r"""Adapt frozen embeddings to a collection of texts with one matrix, fitted in closed form without labels.

    A text and its nearest neighbors are treated as views of each other. Let :math:`x_i` be the embeddings, scaled to
    unit length and without copies, :math:`\mu` their mean, and :math:`N(i)` the `n_neighbors` nearest neighbors of row
    i by cosine.

    1. Removal of the mean direction, which all texts share:

       .. math:: P = I - \frac{\mu \mu^\top}{\|\mu\|^2}

    2. Within-neighborhood whitening, which shrinks the directions in which neighbors differ:

       .. math:: S = \frac{1}{n k} \sum_i \sum_{j \in N(i)} (x_i - x_j)(x_i - x_j)^\top, \quad
                 B = \left(\frac{S}{\operatorname{tr}(S)/d} + \epsilon I\right)^{-p}, \quad z_i = B P x_i

       with :math:`p` = `whitening` and :math:`\epsilon` = `regularization`.
    3. Ridge regression from each row to its neighborhood mean. Neighbors are searched again, among the whitened rows,
       and weighted by their cosines cubed, :math:`w_{ij} \propto \cos(z_i, z_j)^3`:

       .. math:: m_i = s z_i + (1 - s) \sum_j w_{ij} z_j, \quad W = \arg\min_W \sum_i \|W z_i - m_i\|^2 + \gamma \|W\|^2

       with :math:`s` = `self_weight` and :math:`\gamma` = `penalty` times the mean diagonal of
       :math:`\sum_i z_i z_i^\top`.
    4. Shrinkage toward the identity, which makes small samples harmless. With :math:`A = W B P`, scaled to a mean
       diagonal of 1, and :math:`\lambda = 1 / (1 + (d / 1.5n)^4)`:

       .. math:: f(x) = (\lambda A + (1 - \lambda) I) x, \text{ scaled to unit length.}

       Copies of a text add no information, so :math:`n` is the number of distinct rows.

    5. Rotation to the principal axes of the adapted rows, which are the eigenvectors of
       :math:`\sum_i f(x_i) f(x_i)^\top`, largest eigenvalue first. It leaves every cosine as it is. The first m numbers
       of a vector are then its best approximation with m numbers, so that vectors can be cut: with `n_components`,
       `truncate_dim`, or in the index. The sign of an axis is the one for which its coordinate with the largest
       absolute value, in the space of the embeddings, is positive.
       With `rotation="bits"`, an additional rotation of the truncated vectors reduces the error of binary quantization
       (iterative quantization). Use it for an index with one bit per dimension. Do not truncate these vectors.

    The map has no bias, so the length of x does not matter: a server that applies the matrix before it scales
    embeddings to unit length returns the same vectors.

    Use it before training anything: it takes seconds, needs only the texts that you search or cluster, and works on
    the output of any model, including an API. Fit it on the documents; queries go through the same map. The defaults
    are for searching documents. For short texts, such as titles and questions, use `whitening=0` and
    `self_weight=0.7`: whitening often hurts there. `informin.adapters.prediction.choose` and `informin fit` choose
    between the two without labels. Use about 300 texts or more.

    Args:
        n_neighbors: Number of neighbors of each row. Fewer if there are fewer rows.
        whitening: Exponent p of the whitening: 0 for none, 0.5 for full whitening.
        regularization: Epsilon, added to the eigenvalues of S, whose mean is 1.
        self_weight: Fraction s of a row in its own neighborhood mean, between 0 and 1. 1 turns the regression off.
        penalty: Ridge penalty.
        n_components: Number of dimensions of the adapted vectors, at most d; None for d.
        rotation: `principal`, or `bits` for binary quantization.
        max_samples: Maximum number of rows among which neighbors are searched, a random sample. The mean uses all rows.
        random_state: Seed of the sample.

    Attributes:
        coef_: (n_components, d) float64, the matrix: ``f(x) = coef_ @ x``, scaled to unit length.
        intercept_: (n_components,) float64, zeros.
        strength_: Lambda, between 0 and 1: the weight of the fitted map against the identity.
        n_features_in_: d.
        n_samples_: n, the number of distinct rows, without rows of zeros.

    Example:
        >>> import numpy as np
        >>> from informin.adapters.linear import LinearAdapter
        >>> documents = np.random.default_rng(0).normal(size=(500, 16))
        >>> adapter = LinearAdapter().fit(documents)
        >>> adapter.transform(documents).shape
        (500, 16)

    Source:
        Within-class covariance normalization (Hatch, Kajarekar & Stolcke, 2006) and relevant component analysis
        (Bar-Hillel et al., 2003), with neighborhoods in place of classes; database-side augmentation (Arandjelovic &
        Zisserman, 2012) with similarity weights (Radenovic, Tolias & Chum, 2019), in linear form. Removal of the mean
        direction: Ren, Sun & Liang (2025), arXiv 2511.11041. Rotation for bits: Gong & Lazebnik (2011).
    """

    def __init__(
        self,
        n_neighbors: int = 10,
        *,
        whitening: float = 0.3,
        regularization: float = 0.1,
        self_weight: float = 0.8,
        penalty: float = 1e-3,
        n_components: int | None = None,
        rotation: str = "principal",
        max_samples: int = 50_000,
        random_state: int = 0,
    ):
        self.n_neighbors = n_neighbors
        self.whitening = whitening
        self.regularization = regularization
        self.self_weight = self_weight
        self.penalty = penalty
        self.n_components = n_components
        self.rotation = rotation
        self.max_samples = max_samples
        self.random_state = random_state

    def fit(self, X, y=None) -> "LinearAdapter":
        """Fit the map on embeddings.

        With several processes (`accelerate launch`), every process passes the same X, and the work is shared.

        Args:
            X: (n, d) embeddings of any scale, such as a NumPy array or a memory map. Rows of zeros are ignored, and so
                are copies: rows that are equal up to rounding after they are scaled to unit length.
            y: Ignored.

        Returns:
            The fitted adapter.

        Raises:
            UsageError: An option is out of range, X contains NaN or infinity, or has fewer than two distinct rows.
        """
        self._check_options()
        self.scores_ = None
        X = self._validated(X, reset=True)
        mean, distinct, count = mean_of_units(X)
        x = self._sample(X, distinct)
        if self.n_components is not None:
            _require_components(self.n_components, X.shape[1])
        k = min(self.n_neighbors, len(x) - 1)
        if k < 1 or bool((x == x[:1]).all()):
            raise UsageError(
                f"Found {len(X)} rows (n_samples={len(X)}) of {X.shape[1]} feature(s), fewer than two of them distinct "
                "and not zero",
                needed="the embeddings of two different texts or more, better 300",
            )
        width = x.shape[1]
        self.n_samples_ = count
        self.strength_ = 1 / (1 + (width / (1.5 * count)) ** 4)
        projection = without_direction(mean, x)
        whitening = projection @ whitening_matrix(x, k, self.whitening, self.regularization)
        # matrices are applied from the right
        matrix = whitening @ regression_matrix(x @ whitening, k, self.self_weight, self.penalty)
        matrix = matrix * (width / float(matrix.trace() or width))
        matrix = self.strength_ * matrix + (1 - self.strength_) * torch.eye(width, dtype=torch.float64)
        matrix = (matrix @ principal_axes(x, matrix))[:, : self.n_components]
        if self.rotation == "bits":
            matrix = matrix @ rotation_for_bits(unit_rows(x @ matrix), self.random_state)
        self.coef_ = matrix.T.contiguous().numpy()
        self.intercept_ = np.zeros(len(self.coef_))
        return self

    def cut(self, n_components: int) -> "LinearAdapter":
        """Return the fitted adapter with fewer dimensions: the same as one that was fitted with this `n_components`.

        Cosines change with the dimensions: call `measure_scores` again before `threshold`.

        Args:
            n_components: Number of dimensions, at most that of `transform`.

        Raises:
            UsageError: It is out of range, or the adapter is rotated for bits.
        """
        check_is_fitted(self)
        if self.rotation == "bits":
            raise UsageError("is bits", option="rotation", fix="Fit with `n_components`; these vectors cannot be cut.")
        _require_components(n_components, len(self.coef_))
        adapter = copy(self).set_params(n_components=n_components)
        adapter.scores_ = None
        adapter.coef_, adapter.intercept_ = self.coef_[:n_components].copy(), self.intercept_[:n_components].copy()
        return adapter

    def transform(self, X) -> np.ndarray:
        """Return adapted embeddings of unit length, of queries or documents.

        Args:
            X: (n, d) embeddings.

        Returns:
            (n, n_components) float16, float32 or float64 as X. Rows of zeros stay zero.

        Raises:
            UsageError: X contains NaN or infinity.
        """
        return self._adapted(X)

    def _adapted(self, X) -> np.ndarray:
        check_is_fitted(self)
        X = self._validated(X, reset=False)
        adapted = np.empty((len(X), len(self.coef_)), dtype=X.dtype.newbyteorder("="))
        coef, intercept = torch.from_numpy(self.coef_.T), torch.from_numpy(self.intercept_)
        for start in range(0, len(X), CHUNK):
            rows = slice(start, start + CHUNK)
            x = unit_rows(finite_chunk(X, rows))
            adapted[rows] = (unit_rows(x @ coef + intercept) * present(x)[:, None]).numpy()
        return adapted

    def smooth(self, X, corpus=None, *, self_weight: float = 0.5) -> np.ndarray:
        """Return adapted embeddings of documents, each averaged with its nearest documents, for an index.

        The average is over the document and its `n_neighbors` nearest documents after the adapter, weighted by their
        cosines cubed. Copies count once. Only documents are smoothed. Queries are not: use `transform` for them.

        Args:
            X: (n, d) embeddings of documents.
            corpus: (m, d) embeddings of documents that are in the index already; None if X is all there is. Neighbors
                are searched among both. The documents in the index stay as they are.
            self_weight: Fraction of a document in its own average, between 0 and 1.

        Returns:
            (n, d) unit vectors in the dtype of X. Rows of zeros stay zero, and are no neighbors.

        Raises:
            UsageError: `self_weight` is out of range, or X or the corpus contains NaN or infinity.
        """
        _require("self_weight", self_weight, _is_number(self_weight, 0, 1), "a number from 0 to 1")
        adapted = self._adapted(X)
        parts = [adapted] if corpus is None else [adapted, self._adapted(corpus)]
        x = torch.cat([torch.from_numpy(np.asarray(part, np.float64)) for part in parts])
        own = np.flatnonzero(adapted.any(-1))
        x = x[present(x)]
        first = first_copies(copy_keys(x).numpy())
        distinct, place = np.unique(first, return_inverse=True)  # those of X come first
        x, number = x[distinct], int(np.searchsorted(distinct, len(own)))
        k = min(self.n_neighbors, len(x) - 1)
        if k < 1:
            return adapted
        smoothed = np.empty((number, adapted.shape[1]), dtype=adapted.dtype)
        for start in range(0, number, CHUNK):
            rows = slice(start, min(start + CHUNK, number))
            means = neighbor_means(x, *nearest_rows(x[rows], x, k, first=start))
            smoothed[rows] = unit_rows(self_weight * x[rows] + (1 - self_weight) * means).numpy()
        adapted[own] = smoothed[place[: len(own)]]
        return adapted

    def save(self, path: str | Path) -> None:
        """Save the map as a safetensors file with `coef` (d_out, d) and `intercept` (d_out,), in float32.

        The scores that `measure_scores` found are in its metadata, as JSON under `scores`.
        """
        from safetensors.numpy import save_file

        check_is_fitted(self)
        tensors = {"coef": self.coef_.astype(np.float32), "intercept": self.intercept_.astype(np.float32)}
        save_file(tensors, path, metadata={"format": "informin-linear-adapter", "version": "1"} | self._scores_metadata)

    @classmethod
    def of_matrix(cls, coef: np.ndarray) -> "LinearAdapter":
        """Return a fitted adapter with a given matrix (n_components, d)."""
        adapter = cls()
        adapter.coef_, adapter.intercept_ = coef.astype(np.float64), np.zeros(len(coef))
        adapter.n_features_in_ = coef.shape[1]
        return adapter

    @property
    def _n_features_out(self) -> int:
        """Number of columns of `transform`, for `get_feature_names_out` and `set_output`."""
        return len(self.coef_)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = [np.dtype(kind).name for kind in DTYPES]
        return tags

    def _check_options(self) -> None:
        for name, fits, needed in (
            ("n_neighbors", _is_integer(self.n_neighbors, 1), "an integer of 1 or more"),
            ("whitening", _is_number(self.whitening, 0, 1), "a number from 0 to 1"),
            ("regularization", _is_number(self.regularization) and self.regularization > 0, "a number above 0"),
            ("self_weight", _is_number(self.self_weight, 0, 1), "a number from 0 to 1"),
            ("penalty", _is_number(self.penalty, 0), "a number of 0 or more"),
            ("rotation", self.rotation in ROTATIONS, f"one of: {', '.join(ROTATIONS)}"),
            ("max_samples", _is_integer(self.max_samples, 2), "an integer of 2 or more"),
        ):
            _require(name, getattr(self, name), fits, needed)
        try:
            check_random_state(self.random_state)
        except ValueError:
            _require("random_state", self.random_state, False, "an integer from 0 to 4294967295")

    def _validated(self, X, *, reset: bool) -> np.ndarray:
        """Check the shape and type. NaN is refused as rows are read. Large arrays and memory maps are not copied."""
        large = isinstance(X, np.memmap) or (isinstance(X, np.ndarray) and len(X.shape) and len(X) >= MEMORY_MAPPED)
        if large and X.ndim == 2 and X.size and X.dtype.newbyteorder("=") in DTYPES:
            validate_data(self, X, reset=reset, skip_check_array=True)
            return X
        if isinstance(X, np.ndarray) and not X.dtype.isnative:
            X = X.astype(X.dtype.newbyteorder("="))
        return validate_data(self, X, reset=reset, dtype=DTYPES, ensure_all_finite=False)

    def _sample(self, X: np.ndarray, distinct: np.ndarray) -> Tensor:
        """Return at most `max_samples` distinct rows (m, d) of unit length, without zeros, the same in every process.

        Args:
            distinct: Indices of the distinct rows.
        """
        rows = distinct
        if len(rows) > self.max_samples:
            drawn = check_random_state(self.random_state).choice(len(rows), self.max_samples, replace=False)
            rows = rows[np.sort(drawn)]
        x = unit_rows(torch.from_numpy(read_rows(X, rows).astype(np.float64, copy=False)))
        return x[present(x)]


def _require(name: str, value: object, fits: bool, needed: str) -> None:
    """Raise UsageError for an option that is out of range."""
    if not fits:
        raise UsageError(f"is {value}", option=name, needed=needed)


def _require_components(value: object, most: int) -> None:
    """Raise UsageError if a number of dimensions is not between 1 and the most there are."""
    fits = _is_integer(value, 1) and int(value) <= most  # type: ignore[call-overload]
    _require("n_components", value, fits, f"an integer from 1 to {most}")


def _is_number(value: object, least: float = -math.inf, most: float = math.inf) -> bool:
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    return math.isfinite(value) and least <= float(value) <= most


def _is_integer(value: object, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least
