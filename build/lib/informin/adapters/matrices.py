"""The steps of `LinearAdapter` as matrices: mean direction, whitening, regression, rotations."""

from collections.abc import Iterator

import numpy as np
import torch
from sklearn.utils.validation import check_random_state
from torch import Tensor

from informin.adapters.blocks import finite_rows, local_blocks
from informin.copies import GRIDS, copy_keys, distinct_rows
from informin.distributed import rank, sum_over_processes, world_size
from informin.errors import UsageError
from informin.neighbors import nearest_rows, neighbor_means, unit_tensor
from informin.rows import CHUNK

BIT_ROWS = 5_000  # of `rotation_for_bits` at most
BIT_ITERATIONS = 50  # of `rotation_for_bits`


def mean_of_units(X: np.ndarray) -> tuple[Tensor, np.ndarray, int]:
    """Return the mean (d,) of the distinct rows, scaled to unit length; their indices; and how many are not zero."""
    total = torch.zeros(X.shape[1], dtype=torch.float64)
    keys = torch.zeros(len(X), GRIDS, dtype=torch.int64)
    for rows, x in _local_units(X):
        total += x.sum(0)
        keys[rows] = copy_keys(x)
    total = sum_over_processes(total)
    all_keys = sum_over_processes(keys).numpy()
    distinct = distinct_rows(all_keys)
    count = int(all_keys[distinct].any(-1).sum())
    if count < all_keys.any(-1).sum():  # there are copies: add up again without them
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


def _ridge(gram: Tensor, cross: Tensor, penalty: float) -> Tensor:
    """Solve (gram + penalty * mean diagonal * I) W = cross; directions without variance get zero."""
    width = len(gram)
    ridge = max(penalty, 1e-12) * gram.trace() / width
    return torch.linalg.solve(gram + ridge * torch.eye(width, dtype=gram.dtype), cross)
