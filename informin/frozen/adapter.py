"""LinearAdapter: a linear map of frozen embeddings, fitted in closed form without labels or training."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data
from torch import Tensor

from informin.distributed import rank, sum_over_processes, world_size
from informin.errors import UsageError, counted
from informin.evaluation.neighbors import ROWS_AT_ONCE, nearest_rows, neighbor_means, nonzero, unit_tensor
from informin.evaluation.rows import CHUNK, native, raise_if_not_finite, rows_of
from informin.files import named_in_errors, new_file
from informin.frozen.duplicates import GRIDS, distinct_rows, duplicate_keys, first_duplicates
from informin.frozen.unrelated import FEWEST_TEXTS, UnrelatedScores, draw_rows, unrelated_scores
from informin.model.records import ADAPTER_FORMAT
from informin.options import check_value, with_home

ROTATIONS = ("principal", "bits")
# Options by task. Whitening helps search, and often hurts labels and clusters of short texts.
TASKS: dict[str, dict[str, Any]] = {"clustering": {"whitening": 0.0, "self_weight": 0.7}, "search": {}}
DTYPES = (np.float64, np.float32, np.float16)  # that `transform` returns; others become the first
MEMORY_MAPPED = 10**6  # rows: larger arrays are read in chunks and never copied
BIT_ROWS = 5_000  # of `rotation_for_bits` at most
BIT_ITERATIONS = 50  # of `rotation_for_bits`
SMOOTH_NEIGHBORS = 10  # of `smooth_rows`
SMOOTH_WEIGHT = 0.5  # of a row in its own average


class LinearAdapter(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    r"""Adapt frozen embeddings to a collection of texts with one matrix, fitted in closed form without labels.

    A text and its nearest neighbors are treated as views of each other. Let :math:`x_i` be the embeddings, scaled to
    unit length and without duplicates, :math:`\mu` their mean, and :math:`N(i)` the `n_neighbors` nearest neighbors
    of row i by cosine.

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

       Duplicates of a text add no information, so :math:`n` is the number of distinct rows.

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
        >>> from informin.frozen.adapter import LinearAdapter
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
                are duplicates: rows that are equal up to rounding after they are scaled to unit length.
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
        check_value(isinstance(smooth, bool | np.bool_), "smooth", smooth, "True or False")
        adapted = self._adapted(self._validated(X, reset=False))
        return smooth_rows(adapted, self.n_neighbors) if smooth else adapted

    def _adapted(self, X: np.ndarray) -> np.ndarray:
        adapted = np.empty((len(X), len(self.coef_)), dtype=X.dtype)
        coef = torch.from_numpy(self.coef_.T)
        intercept = torch.from_numpy(self.intercept_)
        for start in range(0, len(X), CHUNK):
            rows = slice(start, start + CHUNK)
            x = unit_tensor(finite_rows(X, rows))
            adapted[rows] = (unit_tensor(x @ coef + intercept) * nonzero(x)[:, None]).numpy()
        return adapted

    def measure_scores(self, X, documents: np.ndarray | None = None) -> "LinearAdapter":
        """Measure the cosines between unrelated texts, for `threshold`.

        Args:
            X: (n, d) embeddings of the collection, before the adapter. At most 3,000 of them are compared.
            documents: (n, n_components) vectors of the same texts in the index, such as those of
                ``transform(X, smooth=True)``. Default: those of `transform`.

        Returns:
            The adapter. Its `scores_` are None for fewer than 100 distinct texts, or if they form no topics.
        """
        check_is_fitted(self)
        X = self._validated(X, reset=False)
        rows = draw_rows(len(X))
        vectors = rows_of(X, rows)
        queries = self._adapted(vectors)
        index = queries if documents is None else rows_of(np.asanyarray(documents), rows)
        self.scores_ = unrelated_scores(vectors, queries, index, texts=len(X))
        return self

    def threshold(self, false_hits_per_query: float = 1.0, texts: int | None = None) -> float:
        """Return the cosine of adapted embeddings above which a query finds at most about this many unrelated texts.

        Call `measure_scores` first; `informin.fit` does.

        Args:
            false_hits_per_query: Number of unrelated texts, above 0.
            texts: Number of texts that are searched. Default: as many as in the collection.

        Raises:
            UsageError: The scores were not measured, there are too few texts, or an argument is not above 0.
        """
        check_is_fitted(self)
        if self.scores_ is None:
            raise UsageError(
                "The adapter has no scores",
                needed=f"`measure_scores` with the embeddings of {FEWEST_TEXTS} different texts or more",
            )
        return self.scores_.threshold(false_hits_per_query, texts)

    def save(self, path: str | Path) -> None:
        """Save the map as a safetensors file with `coef` (d_out, d) and `intercept` (d_out,), in float32.

        The scores of `measure_scores` are in its metadata, as JSON under `scores`. Raises SaveError if the file cannot
        be written, and then leaves an existing file unchanged.
        """
        check_is_fitted(self)
        tensors = {"coef": self.coef_.astype(np.float32, "C"), "intercept": self.intercept_.astype(np.float32)}
        metadata = {"format": ADAPTER_FORMAT, "version": "1"}
        if self.scores_:
            metadata["scores"] = json.dumps(asdict(self.scores_))
        path = with_home(path)
        with named_in_errors(path), new_file(path) as partial:
            partial.write_bytes(save(tensors, metadata))  # only the owner could read a file of `save_file`

    @property
    def _n_features_out(self) -> int:
        """Number of columns of `transform`, for `get_feature_names_out` and `set_output`."""
        return len(self.coef_)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = [np.dtype(kind).name for kind in DTYPES]
        return tags

    def _check_options(self, width: int) -> None:
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
            check_value(fits, name, getattr(self, name), needed)

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


def smooth_rows(vectors: np.ndarray, n_neighbors: int = SMOOTH_NEIGHBORS) -> np.ndarray:
    """Average each unit vector with its nearest neighbors, weighted by their cosines cubed, half and half.

    Duplicates count once. Rows of zeros stay zero, and are not neighbors.

    Args:
        vectors: (n, d) unit vectors of documents, after the adapter if there is one.
        n_neighbors: Number of neighbors of each row. Fewer if there are fewer rows.

    Returns:
        (n, d) unit vectors in the dtype of `vectors`.
    """
    x = torch.from_numpy(np.asarray(vectors, np.float64))
    rows = np.flatnonzero(nonzero(x))
    x = x[rows]
    distinct, number = np.unique(first_duplicates(duplicate_keys(x).numpy()), return_inverse=True)
    x = x[distinct]
    k = min(n_neighbors, len(x) - 1)
    smoothed = np.array(vectors)
    if k < 1:
        return smoothed
    means = neighbor_means(x.numpy(), *nearest_rows(x, x, k, first=0))
    averages = unit_tensor(SMOOTH_WEIGHT * x + (1 - SMOOTH_WEIGHT) * means)
    smoothed[rows] = averages[number].numpy()
    return smoothed


def mean_of_units(X: np.ndarray) -> tuple[Tensor, np.ndarray, int]:
    """Return the mean (d,) of the distinct rows, scaled to unit length; their indices; and how many are not zero."""
    total = torch.zeros(X.shape[1], dtype=torch.float64)
    keys = torch.zeros(len(X), GRIDS, dtype=torch.int64)
    for rows, x in _local_units(X):
        total += x.sum(0)
        keys[rows] = duplicate_keys(x)
    total = sum_over_processes(total)
    all_keys = sum_over_processes(keys).numpy()
    distinct = distinct_rows(all_keys)
    count = int(all_keys[distinct].any(-1).sum())
    if count < all_keys.any(-1).sum():  # there are duplicates: add up again without them
        kept = np.zeros(len(X), dtype=bool)
        total = torch.zeros_like(total)
        kept[distinct] = True
        for rows, x in _local_units(X):
            total += x[torch.from_numpy(kept[rows])].sum(0)
        total = sum_over_processes(total)
    return total / max(count, 1), distinct, count


def _local_units(X: np.ndarray) -> Iterator[tuple[slice, Tensor]]:
    """Yield the chunks of this process, scaled to unit length. If one fails, all processes raise an error."""
    problem = None
    try:
        for number, start in enumerate(range(0, len(X), CHUNK)):
            if number % world_size() == rank():
                rows = slice(start, start + CHUNK)
                yield rows, unit_tensor(finite_rows(X, rows))
    except UsageError as error:
        problem = error
    if sum_over_processes(torch.tensor(problem is not None, dtype=torch.float64)):
        raise problem or UsageError("Another process could not read its rows of X")


def finite_rows(x: np.ndarray, rows: slice) -> Tensor:
    """Return consecutive rows of an array or memory map as float64.

    Raises:
        UsageError: They contain NaN or infinity.
    """
    chunk = rows_of(x, rows)
    raise_if_not_finite(chunk, rows.start or 0)
    return torch.from_numpy(chunk.astype(np.float64, copy=False))


def without_direction(mean: Tensor, x: Tensor) -> Tensor:
    """Return the projection (d, d) that removes the direction of the mean (d,), if rows (n, d) differ in others too."""
    identity = torch.eye(len(mean), dtype=torch.float64)
    projection = identity - torch.outer(mean, mean) / (mean @ mean).clamp(min=1e-300)
    return projection if float((x @ projection).square().sum(-1).mean()) > 1e-12 else identity


def whitening_matrix(x: Tensor, k: int, power: float, regularization: float) -> Tensor:
    """Return the symmetric matrix B (d, d) that whitens the differences between neighbors.

    The scatter of the differences is a sum over pairs, computed from the neighbor sums P of the anchors:
    k X'X - X'P - P'X + sum over neighbors j of x_j x_j'.
    """
    width = x.shape[1]
    if power == 0:
        return torch.eye(width, dtype=torch.float64)
    scatter = torch.zeros(width, width, dtype=torch.float64)
    times = torch.zeros(len(x), dtype=torch.float64)
    for rows in local_blocks(len(x)):
        anchors = x[rows]
        indices, _ = nearest_rows(anchors, x, k, first=rows.start)
        sums = sum(x[index] for index in indices.T)  # (block, d)
        cross = anchors.T @ sums
        scatter += k * anchors.T @ anchors - cross - cross.T
        times += torch.bincount(indices.flatten(), minlength=len(x))
    scatter = sum_over_processes(scatter)
    times = sum_over_processes(times)
    scatter += x.T @ (times[:, None] * x)
    values, vectors = torch.linalg.eigh(scatter)
    values = values.clamp(min=0)
    mean = values.mean()
    if mean <= 1e-12 * len(x) * k:
        return torch.eye(width, dtype=torch.float64)  # neighbors are duplicates: there is nothing to whiten
    return (vectors * (values / mean + regularization) ** -power) @ vectors.T


def regression_matrix(z: Tensor, k: int, self_weight: float, penalty: float) -> Tensor:
    """Return the matrix (d, d), applied from the right, of the ridge regression to neighborhood means."""
    width = z.shape[1]
    if self_weight == 1:
        return torch.eye(width, dtype=torch.float64)
    directions = unit_tensor(z)
    gram, cross = torch.zeros(2, width, width, dtype=torch.float64)
    for rows in local_blocks(len(z)):
        anchors = z[rows]
        indices, cosines = nearest_rows(directions[rows], directions, k, first=rows.start)
        means = neighbor_means(z.numpy(), indices, cosines)
        gram += anchors.T @ anchors
        cross += anchors.T @ (self_weight * anchors + (1 - self_weight) * means)
    return _ridge(sum_over_processes(gram), sum_over_processes(cross), penalty)


def _ridge(gram: Tensor, cross: Tensor, penalty: float) -> Tensor:
    """Solve (gram + penalty * mean diagonal * I) W = cross; directions without variance get zero."""
    width = len(gram)
    ridge = max(penalty, 1e-12) * gram.trace() / width
    return torch.linalg.solve(gram + ridge * torch.eye(width, dtype=gram.dtype), cross)


def local_blocks(rows: int) -> Iterator[slice]:
    """Yield the blocks of rows that this process handles."""
    for number, start in enumerate(range(0, rows, ROWS_AT_ONCE)):
        if number % world_size() == rank():
            yield slice(start, start + ROWS_AT_ONCE)


def principal_axes(x: Tensor, matrix: Tensor) -> Tensor:
    """Return the principal axes (d, d) of adapted rows, in columns, largest first, with a sign that is documented.

    Args:
        x: (n, d) unit rows.
        matrix: (d, d) the map, applied from the right.
    """
    width = len(matrix)
    moments = torch.zeros(width, width, dtype=torch.float64)
    for rows in local_blocks(len(x)):
        adapted = unit_tensor(x[rows] @ matrix)
        moments += adapted.T @ adapted
    axes = torch.linalg.eigh(sum_over_processes(moments)).eigenvectors.flip(1)
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
    return axes * largest.sign()


def rotation_for_bits(x: Tensor, random_state: int) -> Tensor:
    """Return the rotation (d, d), applied from the right, after which unit rows are closest to their signs.

    Iterative quantization: the signs and the rotation that fits them best, in turn, from a random rotation.

    Args:
        x: (n, d) unit rows. Up to `BIT_ROWS` of them are used, a random sample.
        random_state: Seed of the sample and of the first rotation.

    Source:
        Gong & Lazebnik (2011), "Iterative Quantization: A Procrustean Approach to Learning Binary Codes", section 2.2.
    """
    random = check_random_state(random_state)
    width = x.shape[1]
    sample = x[torch.from_numpy(random.permutation(len(x))[:BIT_ROWS])]
    rotation = torch.linalg.qr(torch.from_numpy(random.normal(size=(width, width)))).Q
    for _ in range(BIT_ITERATIONS):
        left, _, right = torch.linalg.svd(sample.T @ (sample @ rotation).sign())
        rotation = left @ right
    return rotation
