"""How an encoder treats similar sentences: whether K-means keeps them together, and how much their cosines scatter."""

import numpy as np
from sklearn.cluster import KMeans

from informin.evaluation.encode import unit
from informin.evaluation.pairs import GradedPairs, positive

CLUSTERS, STARTS, GRADES = 10, 5, 10


def kept_together(x: np.ndarray, y: np.ndarray, clusters: int = CLUSTERS) -> tuple[float, float]:
    """Return the percentage of pairs that K-means puts into one cluster, and that of two rows drawn at random.

    Args:
        x, y: First and second sentences of the pairs, (N, d) each. Both are clustered together, as unit vectors.
        clusters: Number of clusters. The percentages are means over STARTS random starts, each the best of ten.

    Source:
        The measure is ours; Chen et al. (2022), figure 2, show the clusters.
    """
    rows, together, chance = unit(np.concatenate([x, y])), [], []
    for seed in range(STARTS):
        found = KMeans(clusters, n_init=10, random_state=seed).fit_predict(rows)
        together.append((found[: len(x)] == found[len(x) :]).mean())
        chance.append(np.square(np.bincount(found) / len(found)).sum())
    return 100 * float(np.mean(together)), 100 * float(np.mean(chance))


def scatter(cosines: np.ndarray, grades: np.ndarray) -> tuple[float, float]:
    """Return how much cosines (N,) vary among pairs of about the same grade (N,).

    Returns:
        The root mean square of the standard deviations in GRADES equally wide ranges of the grade, weighted by their
        pairs; and the percentage of the variance of all cosines that this leaves, which does not depend on their scale.

    Source:
        The measure is ours; Klein and Nabi (2023), figure 7, show the distributions.
    """
    edges = np.linspace(grades.min(), grades.max(), GRADES + 1)[1:-1]
    group = np.digitize(grades, edges)
    residual = cosines - np.array([cosines[group == i].mean() for i in group])
    within = np.square(residual).mean()
    return float(np.sqrt(within)), 100 * float(within / cosines.var())


def measure_pairs(x: np.ndarray, y: np.ndarray, cosines: np.ndarray, pairs: GradedPairs) -> dict[str, float]:
    """Return all measures of an encoder: of K-means for the pairs graded above 80% of the scale, scatter for all."""
    similar = positive(pairs.scores)
    together, chance = kept_together(x[similar], y[similar])
    spread, unexplained = scatter(cosines, pairs.scores)
    return {
        "one cluster, %": together,
        "by chance, %": chance,
        "sd in a grade": spread,
        "variance left, %": unexplained,
    }
