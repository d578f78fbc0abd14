"""LinearAdapter: an affine map of frozen embeddings, fitted in closed form without labels or training."""

import json
import math
from dataclasses import asdict
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data
from torch import Tensor

from informin.adapters.blocks import finite_rows
from informin.adapters.matrices import (
    mean_of_units,
    principal_axes,
    regression_matrix,
    rotation_for_bits,
    whitening_matrix,
    without_direction,
)
from informin.adapters.scores import FEWEST_TEXTS, UnrelatedScores, draw_rows, unrelated_scores
from informin.errors import UsageError, counted
from informin.neighbors import nonzero, smooth_rows, unit_tensor
from informin.option_types import check_arguments, checks_options
from informin.rows import CHUNK, native, rows_of

ROTATIONS = ("principal", "bits")
# Options by task. Whitening helps search, and often hurts labels and clusters of short texts.
TASKS: dict[str, dict[str, Any]] = {"clustering": {"whitening": 0.0, "self_weight": 0.7}, "search": {}}
DTYPES = (np.float64, np.float32, np.float16)  # that `transform` returns; others become the first
MEMORY_MAPPED = 10**6  # rows: larger arrays are read in chunks and never copied


class LinearAdapter(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
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

    It takes seconds, needs only texts without labels, and works on the output of any model, including an API. The
    defaults are those of `TASKS["search"]`: fit on the documents, and send queries through the same map. It helps where
    queries resemble the documents, and can hurt where they are questions. For clusters, labels and near-duplicates, use
    ``LinearAdapter(**TASKS["clustering"])``. Use about 300 texts or more for search, and 500 or more for clusters.

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
        scores_: Cosines between unrelated texts, from `measure_scores`; None before it, or if there are none.

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

        In a distributed run (`accelerate launch`), every process passes the same X, and the work is shared.

        Args:
            X: (n, d) embeddings of any scale, such as a NumPy array or a memory map. Rows of zeros are ignored, and so
                are copies: rows that are equal up to rounding after they are scaled to unit length.
            y: Ignored.

        Returns:
            The fitted adapter.

        Raises:
            UsageError: An option is out of range, X contains NaN or infinity, or has fewer than two distinct rows.
        """
        X = self._validated(X, reset=True)
        self._check_options(X.shape[1])
        self.scores_: UnrelatedScores | None = None
        mean, distinct, count = mean_of_units(X)
        x = self._sample(X, distinct)
        k = min(self.n_neighbors, len(x) - 1)
        if k < 1 or bool((x == x[:1]).all()):
            found = f"Found {counted(len(X), 'row')} (n_samples={len(X)}) of {X.shape[1]} feature(s)"
            needed = "the embeddings of two different texts or more, better 300"
            raise UsageError(f"{found}, fewer than two of them distinct and not zero", needed=needed)
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
            matrix = matrix @ rotation_for_bits(unit_tensor(x @ matrix), self.random_state)
        self.coef_ = matrix.T.contiguous().numpy()
        self.intercept_ = np.zeros(len(self.coef_))
        return self

    @checks_options
    def transform(self, X, smooth: bool = False) -> np.ndarray:
        """Return adapted embeddings of unit length, of queries or documents.

        Args:
            X: (n, d) embeddings as the model returns them. They are never adapted before.
            smooth: Also average each adapted row with its `n_neighbors` nearest adapted rows, weighted by their cosines
                cubed. For all documents of an index; never for queries.

        Returns:
            (n, n_components) float16, float32 or float64 as X. Rows of zeros stay zero.

        Raises:
            UsageError: X contains NaN or infinity.
        """
        check_is_fitted(self)
        X = self._validated(X, reset=False)
        adapted = np.empty((len(X), len(self.coef_)), dtype=X.dtype)
        coef = torch.from_numpy(self.coef_.T)
        intercept = torch.from_numpy(self.intercept_)
        for start in range(0, len(X), CHUNK):
            rows = slice(start, start + CHUNK)
            x = unit_tensor(finite_rows(X, rows))
            adapted[rows] = (unit_tensor(x @ coef + intercept) * nonzero(x)[:, None]).numpy()
        return smooth_rows(adapted, self.n_neighbors) if smooth else adapted

    @checks_options
    def measure_scores(self, X, documents: np.ndarray | None = None) -> "LinearAdapter":
        """Measure the cosines between unrelated texts, for `threshold`.

        Args:
            X: (n, d) embeddings of the collection, before the adapter. At most 3,000 of them are compared.
            documents: (n, n_components) vectors of the same texts in the index, such as those of
                ``transform(X, smooth=True)``. Default: those of `transform`.

        Returns:
            The adapter. Its `scores_` are None for fewer than 100 distinct texts.
        """
        rows = draw_rows(len(X))
        vectors = rows_of(X, rows)
        queries = self.transform(vectors)
        index = queries if documents is None else rows_of(documents, rows)
        self.scores_ = unrelated_scores(vectors, queries, index, texts=len(X))
        return self

    @checks_options
    def threshold(self, false_hits_per_query: float = 1.0, texts: int | None = None) -> float:
        """Return the cosine of adapted embeddings above which a query finds at most about this many unrelated texts.

        Call `measure_scores` first; `informin.fit` does.

        Args:
            false_hits_per_query: Number of unrelated texts, above 0.
            texts: Number of texts that are searched. Default: as many as in the collection.

        Raises:
            UsageError: The scores were not measured, there are too few texts, or an argument is not above 0.
        """
        if self.scores_ is None:
            raise UsageError(
                "The adapter has no scores",
                needed=f"`measure_scores` with the embeddings of {FEWEST_TEXTS} different texts or more",
            )
        return self.scores_.threshold(false_hits_per_query, texts)

    @checks_options
    def save(self, path: str | Path) -> None:
        """Save the map as a safetensors file with `coef` (d_out, d) and `intercept` (d_out,), in float32.

        The scores of `measure_scores` are in its metadata, as JSON under `scores`.
        """
        check_is_fitted(self)
        tensors = {"coef": self.coef_.astype(np.float32, "C"), "intercept": self.intercept_.astype(np.float32)}
        metadata = {"format": "informin-linear-adapter", "version": "1"}
        if self.scores_:
            metadata["scores"] = json.dumps(asdict(self.scores_))
        Path(path).write_bytes(save(tensors, metadata))  # `save_file` writes a file that only its owner can read

    @property
    def _n_features_out(self) -> int:
        """Number of columns of `transform`, for `get_feature_names_out` and `set_output`."""
        return len(self.coef_)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = [np.dtype(kind).name for kind in DTYPES]
        return tags

    def _check_options(self, width: int) -> None:
        check_arguments(signature(type(self).__init__), self.get_params())
        for name, fits, needed in (
            ("n_neighbors", self.n_neighbors >= 1, "1 or more"),
            ("whitening", 0 <= self.whitening <= 1, "a number from 0 to 1"),
            ("regularization", 0 < self.regularization < math.inf, "a number above 0"),
            ("self_weight", 0 <= self.self_weight <= 1, "a number from 0 to 1"),
            ("penalty", 0 <= self.penalty < math.inf, "a number of 0 or more"),
            ("n_components", self.n_components is None or 1 <= self.n_components <= width, f"1 to {width}"),
            ("rotation", self.rotation in ROTATIONS, f"one of: {', '.join(ROTATIONS)}"),
            ("max_samples", self.max_samples >= 2, "2 or more"),
        ):
            if not fits:
                raise UsageError(f"is {getattr(self, name)}", option=name, needed=needed)

    def _validated(self, X, *, reset: bool) -> np.ndarray:
        """Check the shape and type. `finite_rows` refuses NaN. Large arrays and memory maps are not copied."""
        if isinstance(X, np.ndarray):
            X = native(X)
        large = isinstance(X, np.memmap) or (isinstance(X, np.ndarray) and len(X.shape) and len(X) >= MEMORY_MAPPED)
        if large and X.ndim == 2 and X.size and X.dtype in DTYPES:
            validate_data(self, X, reset=reset, skip_check_array=True)
            return X
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
        x = unit_tensor(torch.from_numpy(rows_of(X, rows).astype(np.float64, copy=False)))
        return x[nonzero(x)]
