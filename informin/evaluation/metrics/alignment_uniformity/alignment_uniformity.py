"""Alignment and uniformity of the embeddings of positive pairs, as an `evaluate` module."""

import datasets
import evaluate
import numpy as np

from .formula import alignment, uniformity

DESCRIPTION = """\
Distribution of embeddings on the unit sphere. Alignment is the mean squared distance |x - y|^2 of positive pairs. \
Uniformity is log mean exp(-2 |x - y|^2) over all pairs. Embeddings are normalized to unit length first. Lower is \
better for both. A collapsed encoder has a perfect alignment of 0 and the worst uniformity, 0.
"""

INPUTS = """
Args:
    predictions: Embeddings of the first sentence of N positive pairs: N rows of d numbers, not all zero.
    references: Embeddings of the second sentence of the same pairs, in the same order.
    sentences: Optional, (first, second), two lists of N texts. With it, duplicate sentences count once in the
        uniformity, as in the training log. Without it, each of the 2 N rows counts as a separate sentence. Duplicates
        cannot be detected from the embeddings: equal embeddings of different sentences are the collapse that
        uniformity measures. Alignment always uses the N pairs.
Returns:
    alignment: Mean squared distance of the pairs, from 0 to 4; lower is better.
    uniformity: Log of the mean Gaussian kernel over all pairs of different rows, from -8 to 0; lower is better.
        Needs O(N^2) memory: 36 MB for 3,000 rows.
Raises:
    ValueError: An embedding is not finite, there are fewer than two sentences, rows differ in length, or `sentences`
        is not two lists of N texts.
Examples:
    >>> metric = evaluate.load("informin/evaluation/metrics/alignment_uniformity")
    >>> metric.compute(predictions=[[1.0, 0.0], [-3.0, 0.0]], references=[[2.0, 0.0], [-1.0, 0.0]])["alignment"]
    0.0
"""

CITATION = """\
@inproceedings{wang2020understanding,
    title = {Understanding Contrastive Representation Learning through Alignment and Uniformity on the Hypersphere},
    author = {Wang, Tongzhou and Isola, Phillip},
    booktitle = {Proceedings of the 37th International Conference on Machine Learning},
    year = {2020},
}
@inproceedings{gao-etal-2021-simcse,
    title = {{SimCSE}: Simple Contrastive Learning of Sentence Embeddings},
    author = {Gao, Tianyu and Yao, Xingcheng and Chen, Danqi},
    booktitle = {Proceedings of EMNLP 2021},
    year = {2021},
}
"""


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

    def _compute(self, predictions, references, sentences=None) -> dict[str, float]:
        lengths = {len(row) for row in [*predictions, *references]}
        if len(lengths) > 1:
            found = ", ".join(map(str, sorted(lengths)))
            raise ValueError(f"Found embeddings of {found} dimensions; expected one dimension for all rows.")
        x, y = np.array(predictions, dtype=np.float64), np.array(references, dtype=np.float64)
        both = np.concatenate([x, y])
        broken = int((~np.isfinite(both)).any(axis=-1).sum())
        if broken:
            raise ValueError(f"{broken:,} of the {len(both):,} embeddings are not finite")
        if sentences is not None:
            both = both[_first_rows(sentences, len(x))]
        if len(both) < 2:
            raise ValueError(f"uniformity needs two distinct sentences, and there are {len(both)}")
        return {"alignment": alignment(x, y), "uniformity": uniformity(both)}


def _first_rows(sentences, count: int) -> list[int]:
    """Return the index of the first row of each distinct sentence, with the rows of the second side after the first."""
    sides = [list(side) for side in sentences]
    if [len(side) for side in sides] != [count, count]:
        found = " and ".join(str(len(side)) for side in sides)
        raise ValueError(f"`sentences` has {found} texts; expected two lists of {count}, one text for each embedding.")
    first: dict[str, int] = {}
    for row, sentence in enumerate(sides[0] + sides[1]):
        first.setdefault(sentence, row)
    return list(first.values())
