"""Ranked lists of graded documents and their metrics: grade 0 is not relevant, higher is more relevant."""

import numpy as np


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
    hits, total = grades > 0, (ideal > 0).sum(1)  # (Q, K), (Q,)
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


def top(similarity: np.ndarray, k: int) -> np.ndarray:
    """Return the indices of the k highest values of (N,), highest first, ties by index; -1 in place of -infinity."""
    least = np.partition(similarity, len(similarity) - k)[len(similarity) - k]
    candidates = np.flatnonzero(similarity >= least)
    first = candidates[np.argsort(-similarity[candidates], kind="stable")][:k]
    return np.where(np.isneginf(similarity[first]), -1, first)
