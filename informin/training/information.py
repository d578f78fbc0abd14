"""Estimate during training what the two views share, and what one view contains that the other does not.

Theorems 1 and 2 of InforMin-CL: contrast raises a lower bound of the mutual information of the views, and
reconstruction lowers the conditional entropy of one view given the other.
"""

import math

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.nn.functional import normalize

from informin.distributed import world_size
from informin.objectives.contrast import contrast

BOUND, ENTROPY = "infonce_bound", "conditional_entropy"  # names in the log


def infonce_bound(z1: Tensor, z2: Tensor, temperature: float = 0.05) -> Tensor:
    """Return InfoNCE's lower bound of the mutual information of two views, in nats.

        log N - L

    L is the plain contrastive loss over the N sentences of the batch, without queue and weights. The bound cannot
    exceed log N, so compare only runs with the same batch size. With several processes, the mean over them is that of
    the whole batch.

    Args:
        z1: First views, (N, d).
        z2: Second views, (N, d).
        temperature: Divides the cosines.

    Source:
        van den Oord et al. (2018), section 2.3; Chen et al. (2022), InforMin-CL, theorem 1.
    """
    return math.log(world_size() * len(z1)) - contrast(z1, z2, temperature)


def shrink(covariance: Tensor, count: int) -> Tensor:
    """Shrink a sample covariance (p, p) of `count` rows toward a multiple of the identity, by the OAS estimator.

    Without it, fewer rows than dimensions give a singular matrix, and hardly more give too small an entropy.

    Source:
        Chen et al. (2010), "Shrinkage Algorithms for MMSE Covariance Estimation", eq. 23.
    """
    p = len(covariance)
    mean, square = covariance.trace() / p, covariance.square().mean()
    rest = (count + 1) * (square - mean**2 / p)
    weight = 1.0 if rest <= 0 else min(1.0, float((square + mean**2) / rest))
    return (1 - weight) * covariance + weight * mean * torch.eye(p, dtype=covariance.dtype)


def conditional_entropy(covariance: Tensor) -> float:
    """Return the differential entropy of one view given the other, if both are Gaussian, in nats per dimension.

        h(z1 | z2) / d = log(2 pi e) / 2 + (log det S - log det S22) / 2d

    where S is the covariance of (z1, z2) and S22 that of z2. It is negative for vectors that vary little, and the
    maximum over all distributions with this covariance.

    Args:
        covariance: S, (2d, 2d), positive definite.

    Source:
        Cover and Thomas (2006), theorem 8.4.1; Chen et al. (2022), InforMin-CL, theorem 2.
    """
    d = len(covariance) // 2
    excess = covariance.logdet() - covariance[d:, d:].logdet()
    return 0.5 * math.log(2 * math.pi * math.e) + float(excess) / (2 * d)


class Information:
    """The two measures over the steps since the last log entry, on unit vectors of the projections.

    The covariance is accumulated over these steps, since one batch usually has fewer sentences than dimensions, and
    then shrunk (see `shrink`). It includes the movement of the encoder between the steps.
    """

    def __init__(self, temperature: float = 0.05):
        self._temperature = temperature
        self._sums: list[Tensor] = []  # of the bound, the steps and the sentences; the rows; their products

    @torch.no_grad()
    def add(self, z1: Tensor, z2: Tensor) -> None:
        """Add the projections (N, d) of both views in one step."""
        bound = infonce_bound(z1, z2, self._temperature)
        with torch.autocast(z1.device.type, enabled=False):
            rows = torch.cat([normalize(z.float(), dim=-1) for z in (z1, z2)], dim=-1)  # (N, 2d)
            counts = torch.tensor([1.0, len(rows)], device=rows.device)
            step = [torch.cat([bound[None], counts]), rows.sum(0), rows.T @ rows]
        self._sums = [total + part for total, part in zip(self._sums, step)] if self._sums else step

    def pop(self, accelerator: Accelerator) -> dict[str, float]:
        """Return the measures over steps and processes by name, and start again. Empty without a step."""
        if not self._sums:
            return {}
        totals = [accelerator.reduce(total, reduction="sum") for total in self._sums]
        (bound, steps, count), rows, products = (total.double().cpu() for total in totals)
        self._sums = []
        mean = rows / count
        covariance = shrink(products / count - mean.outer(mean), int(count))
        return {BOUND: float(bound / steps), ENTROPY: conditional_entropy(covariance)}
