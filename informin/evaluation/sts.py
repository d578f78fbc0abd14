"""Semantic textual similarity: the correlation of cosine and grade over the subsets of a year."""

import numpy as np

from informin.evaluation.embedding_cache import Encode, embed_once
from informin.evaluation.pairs import correlations, cosine
from informin.evaluation.senteval import StsTask


def score_sts(encode: Encode, task: StsTask) -> dict:
    """Spearman x 100 of one STS task, by each of the aggregations that papers use.

    Args:
        encode: from N sentences to (N, d); called once, with the distinct sentences.

    Returns:
        `score`: over the pairs of all subsets at once ("all", what the papers of this family report). `mean`, `wmean`:
        the subsets' own correlations averaged, plainly and by their number of pairs. `pearson`: x 100, over all.
        `n`: pairs. `subsets`: `score` and `n` of each.

    Raises:
        UndefinedScoreError: an embedding is not finite, or all cosines of a subset are equal.
    """
    embedding = embed_once(encode, task.sentences())
    cosines = [cosine(embedding(pairs.sentences1), embedding(pairs.sentences2)) for pairs in task.subsets]
    overall = correlations(np.concatenate(cosines), np.concatenate([pairs.scores for pairs in task.subsets]))
    scores = [correlations(values, pairs.scores)["spearman"] for values, pairs in zip(cosines, task.subsets)]
    return {
        "score": overall["spearman"],
        "mean": float(np.mean(scores)),
        "wmean": float(np.average(scores, weights=list(map(len, task.subsets)))),
        "pearson": overall["pearson"],
        "n": task.examples,
        "subsets": {pairs.name: {"score": s, "n": len(pairs)} for pairs, s in zip(task.subsets, scores)},
    }
