"""Semantic textual similarity: correlation between the similarity of embeddings and human grades."""

from collections.abc import Callable
from typing import Any

import numpy as np

from informin.evaluation.embedding_cache import Encode, embed_once
from informin.evaluation.pairs import correlations, cosine
from informin.evaluation.senteval import StsTask


def score_sts(encode: Encode, task: StsTask, similarity: Callable[..., Any] = cosine) -> dict:
    """Return Spearman x 100 of one STS task, with the aggregations that papers use.

    Args:
        encode: Function from N sentences to embeddings (N, d); called once, with the distinct sentences.
        similarity: Function from embeddings (N, d) and (N, d) to the similarities (N,) of the pairs, such as the
            `similarity_pairwise` of a SentenceTransformer.

    Returns:
        `score`: over the pairs of all subsets together ("all", reported by SimCSE and InforMin-CL). `mean`, `wmean`:
        mean of the subsets' correlations, unweighted and weighted by number of pairs. `pearson`: x 100, over all
        pairs. `n`: number of pairs. `subsets`: `score` and `n` of each subset.

    Raises:
        UndefinedScoreError: An embedding is not finite, or all similarities of a subset are equal.
    """
    embedding = embed_once(encode, task.texts())
    sides = ((embedding(pairs.sentences1), embedding(pairs.sentences2)) for pairs in task.subsets)
    predicted = [np.asarray(similarity(x, y)) for x, y in sides]
    overall = correlations(np.concatenate(predicted), np.concatenate([pairs.scores for pairs in task.subsets]))
    scores = [correlations(values, pairs.scores)["spearman"] for values, pairs in zip(predicted, task.subsets)]
    return {
        "score": overall["spearman"],
        "mean": float(np.mean(scores)),
        "wmean": float(np.average(scores, weights=list(map(len, task.subsets)))),
        "pearson": overall["pearson"],
        **task.counts,
        "subsets": {pairs.name: {"score": s, "n": len(pairs)} for pairs, s in zip(task.subsets, scores)},
    }
