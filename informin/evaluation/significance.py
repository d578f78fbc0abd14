"""Paired randomization test between two rankers."""

import numpy as np

TRIALS = 10_000
SIGNS = 2**20  # at a time: 8 MiB, and as much for drawing them


def randomization_test(one: np.ndarray, other: np.ndarray, seed: int = 0) -> float:
    """Return the two-sided p-value of a paired randomization test over queries.

    Under the null hypothesis the two scores of a query may be swapped: signs of the differences are flipped 10,000
    times, in blocks to limit memory.

    Args:
        one, other: (Q,) scores of the same queries.

    Source:
        Smucker, Allan & Carterette (2007).
    """
    differences = one - other
    source, step = np.random.default_rng(seed), max(1, SIGNS // len(differences))
    least, above = abs(differences.sum()) - 1e-9, 0
    for start in range(0, TRIALS, step):
        signs = source.choice([-1.0, 1.0], size=(min(step, TRIALS - start), len(differences)))
        above += int((np.abs(signs @ differences) >= least).sum())
    return (1 + above) / (1 + TRIALS)
