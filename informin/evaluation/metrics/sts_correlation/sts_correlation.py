"""Spearman and Pearson correlation of predicted similarities with human grades, as an `evaluate` module."""

import datasets
import evaluate
import numpy as np

from informin.evaluation.pairs import correlations

DESCRIPTION = """\
Correlation between similarities of sentence pairs and human grades: Spearman's rank correlation, which papers on \
semantic textual similarity report, and Pearson's correlation. Both are multiplied by 100. Ties get their mean rank.
"""

INPUTS = """
Args:
    predictions: N similarities, one per pair: cosines of embeddings, or any other number that is higher for more
        similar sentences. `spearman` does not depend on the scale; `pearson` measures how linear the relation is.
    references: N grades on any scale, higher for more similar sentences (0 to 5 in STS, 1 to 5 in SICK-R).
Returns:
    spearman: Spearman correlation x 100, from -100 to 100.
    pearson: Pearson correlation x 100, from -100 to 100.
Raises:
    ValueError: There are fewer than two pairs, or predictions or references are all equal or
        not finite, so that the correlation is undefined.
Examples:
    >>> metric = evaluate.load("informin/evaluation/metrics/sts_correlation")
    >>> round(metric.compute(predictions=[0.1, 0.2, 0.9], references=[0.0, 2.5, 5.0])["spearman"], 2)
    100.0
"""

CITATION = "Cer et al. (SemEval 2017), Semantic Textual Similarity Multilingual and Crosslingual Focused Evaluation"


class StsCorrelation(evaluate.Metric):
    """Correlations x 100, computed by the function that training and `informin eval` use."""

    def _info(self) -> evaluate.MetricInfo:
        number = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": number, "references": number}),
            reference_urls=["https://aclanthology.org/S17-2001", "https://aclanthology.org/C16-1009"],
        )

    def _compute(self, predictions, references) -> dict[str, float]:
        predicted = np.asarray(predictions, dtype=np.float64)
        gold = np.asarray(references, dtype=np.float64)
        return correlations(predicted, gold)
