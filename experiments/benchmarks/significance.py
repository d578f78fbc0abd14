"""A paired test of two systems on the same queries."""

import numpy as np

ROUNDS = 10_000


def permutation_p(gaps: np.ndarray, seed: int = 0) -> float:
    """Return the two-sided p value of a mean difference by random sign flips.

    Args:
        gaps: (m,) difference of both systems for each query.
        seed: Seed of the 10,000 flips.
    """
    source = np.random.default_rng(seed)
    found = abs(gaps.sum()) - 1e-9
    nonzero = gaps[gaps != 0]
    hits = sum(
        int((abs((source.integers(0, 2, (500, len(nonzero))) * 2 - 1) @ nonzero) >= found).sum())
        for _ in range(ROUNDS // 500)
    )
    return (1 + hits) / (1 + ROUNDS)
