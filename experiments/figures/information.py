"""Estimate what two dropout views of a sentence share, and what one contains that the other does not.

Theorems 1 and 2 of InforMin-CL: contrast raises a lower bound of the mutual information of the views, and
reconstruction lowers the conditional entropy of one view given the other.
"""

import math

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from torch.nn.functional import normalize

from informin.objectives.contrast import contrast


def infonce_bound(z1: Tensor, z2: Tensor, temperature: float = 0.05) -> Tensor:
    """Return InfoNCE's lower bound of the mutual information of two views, in nats: log N minus the contrastive loss.

    It cannot exceed log N, so compare only equal N.

    Args:
        z1: First views, (N, d).
        z2: Second views, (N, d).
        temperature: Divides the cosines.

    Source:
        van den Oord et al. (2018), section 2.3; Chen et al. (2022), InforMin-CL, theorem 1.
    """
    return math.log(len(z1)) - contrast(z1, z2, temperature)


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


@torch.no_grad()
def information(model: SentenceTransformer, texts: list[str], batch_size: int = 64) -> dict[str, float]:
    """Return both measures for two dropout views of texts, on unit vectors of the embeddings."""
    torch.manual_seed(0)
    model.train()
    parts: list[list[Tensor]] = [[], []]
    for start in range(0, len(texts), batch_size):
        features = model.preprocess(texts[start : start + batch_size])
        features = {name: x.to(model.device) if isinstance(x, Tensor) else x for name, x in features.items()}
        for views in parts:
            views.append(normalize(model(dict(features))["sentence_embedding"].double().cpu(), dim=-1))
    model.eval()
    z1, z2 = map(torch.cat, parts)
    covariance = shrink(torch.cov(torch.cat([z1, z2], dim=-1).T, correction=0), len(z1))
    return {"infonce_bound": float(infonce_bound(z1, z2)), "conditional_entropy": conditional_entropy(covariance)}
