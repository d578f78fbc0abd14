"""Ranked lists of graded documents, their metrics, and a paired test. Grade 0: not relevant, higher: more relevant."""

import numpy as np

TRIALS = 10_000
SIGNS = 2**20  # at a time: 8 MiB, and as much for drawing them


def per_query_scores(grades: np.ndarray, ideal: np.ndarray) -> dict[str, np.ndarray]:
    """Return the scores x 100 of Q queries, each with at least one relevant document.

    Args:
        grades: Grades (Q, K) of the first K documents retrieved for each query, in order. K is 100, or the number of
            documents if there are fewer.
        ideal: Grades (Q, R) of all relevant documents of each query in descending order, padded with 0.

    Returns:
        For each metric (Q,):

        * `mrr_10`: 1 / rank of the first relevant document, or 0 beyond rank 10.
        * `ndcg_10`: discounted cumulative gain divided by that of the best order; gain is the grade, discount
          log2(rank + 1).
        * `map_100`: average precision: the sum of the precision at each relevant document among the first 100, divided
          by the number of relevant documents.
        * `recall_10`, `recall_100`: fraction of the relevant documents that are among the first k.
        * `accuracy_1`, `accuracy_10`: whether a relevant document is among the first k.

    Source:
        As in trec_eval: recip_rank, ndcg_cut, map_cut, recall, success. Järvelin & Kekäläinen (2002) for nDCG.
    """
    hits = grades > 0  # (Q, K), (Q,)
    total = (ideal > 0).sum(1)
    relevant = hits.cumsum(1)  # (Q, K), relevant documents up to each rank
    rank = np.arange(1, grades.shape[1] + 1)
    scores = {
        "mrr_10": (hits / rank)[:, :10].max(1),
        "ndcg_10": _discounted_gain(grades[:, :10]) / _discounted_gain(ideal[:, :10]),
        "map_100": (hits * relevant / rank)[:, :100].sum(1) / total,
        **{f"recall_{k}": hits[:, :k].sum(1) / total for k in (10, 100)},
        **{f"accuracy_{k}": hits[:, :k].any(1) for k in (1, 10)},
    }
    return {name: 100 * values.astype(float) for name, values in scores.items()}


def _discounted_gain(grades: np.ndarray) -> np.ndarray:
    """Return the sum over ranks of grade / log2(rank + 1) (Q,), for grades (Q, K)."""
    return (grades / np.log2(np.arange(2, grades.shape[1] + 2))).sum(1)


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
    source = np.random.default_rng(seed)
    step = max(1, SIGNS // len(differences))
    least = abs(differences.sum()) - 1e-9
    above = 0
    for start in range(0, TRIALS, step):
        signs = source.choice([-1.0, 1.0], size=(min(step, TRIALS - start), len(differences)))
        above += int((np.abs(signs @ differences) >= least).sum())
    return (1 + above) / (1 + TRIALS)
