"""Alignment and uniformity of the embeddings of positive pairs, as an `evaluate` module."""

import datasets
import evaluate
import numpy as np

from informin.evaluation.encode import alignment, uniformity

DESCRIPTION = """\
Distribution of embeddings on the unit sphere. Alignment is the mean squared distance |x - y|^2 of positive pairs. \
Uniformity is log mean exp(-2 |x - y|^2) over all pairs. Embeddings are normalized to unit length first. Lower is \
better for both. A collapsed encoder has a perfect alignment of 0 and the worst uniformity, 0.
"""

INPUTS = """
Args:
    predictions: Embeddings of the first sentence of N positive pairs: N rows of d numbers, not all zero.
    references: Embeddings of the second sentence of the same pairs, in the same order.
Returns:
    alignment: Mean squared distance of the pairs, from 0 to 4; lower is better.
    uniformity: Log of the mean Gaussian kernel over all pairs of the 2 N rows, from -8 to 0; lower is better. For a
        uniformity over distinct sentences, as in the training log, give each sentence once.
Raises:
    ValueError: An embedding is not finite, or rows differ in length.
Examples:
    >>> metric = evaluate.load("informin/evaluation/metrics/alignment_uniformity")
    >>> metric.compute(predictions=[[1.0, 0.0], [-3.0, 0.0]], references=[[2.0, 0.0], [-1.0, 0.0]])["alignment"]
    0.0
"""

CITATION = (
    "Wang & Isola (ICML 2020), Understanding Contrastive Representation Learning through Alignment and Uniformity on "
    "the Hypersphere"
)


class AlignmentUniformity(evaluate.Metric):
    """Alignment and uniformity, computed by the functions that training and the figures use."""

    def _info(self) -> evaluate.MetricInfo:
        rows = datasets.Sequence(datasets.Value("float64"))
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": rows, "references": rows}),
            reference_urls=["https://arxiv.org/abs/2005.10242", "https://arxiv.org/abs/2104.08821"],
        )

    def _compute(self, predictions, references) -> dict[str, float]:
        x = np.array(predictions, dtype=np.float64)
        y = np.array(references, dtype=np.float64)
        both = np.concatenate([x, y])
        if not np.isfinite(both).all():
            raise ValueError("an embedding is not finite")
        return {"alignment": alignment(x, y), "uniformity": uniformity(both)}
