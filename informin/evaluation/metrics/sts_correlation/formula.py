"""Spearman and Pearson correlation x 100, for `evaluate` and the rest of the library. Needs only numpy and scipy."""

import numpy as np
from scipy.stats import pearsonr, spearmanr


def spearman_and_pearson(predicted: np.ndarray, gold: np.ndarray) -> dict[str, float]:
    """Return `spearman` and `pearson`, x 100, of N predictions with N grades; see `why_undefined`."""
    return {
        "spearman": 100 * float(spearmanr(predicted, gold).statistic),
        "pearson": 100 * float(pearsonr(predicted, gold).statistic),
    }


def why_undefined(predicted: np.ndarray, gold: np.ndarray) -> str | None:
    """Return why the correlation is undefined: too few values, one side constant or not finite. None if it is not."""
    for name, values in (("predictions", predicted), ("grades", gold)):
        if not np.isfinite(values).all():
            return f"{int((~np.isfinite(values)).sum()):,} of {len(values):,} {name} are not finite"
        # Treat values equal up to rounding as constant: cosines of equal vectors differ in their last bits.
        if len(values) < 2 or np.ptp(values) <= 1e-12 * np.abs(values).max():
            return f"all {len(values):,} {name} are equal, so the correlation is undefined"
    return None
