"""Names of all scores, importable without the code that computes them."""

import math
from typing import NamedTuple


class Measure(NamedTuple):
    """Display name and format of a score."""

    title: str
    digits: int = 2  # decimals
    lower_is_better: bool = False

    def shown(self, value: float) -> str:
        """Return the formatted score."""
        return f"{value:.{self.digits}f}" if math.isfinite(value) else "undefined"


# Scores by key for each kind of data; the first one summarizes a dataset.
PAIRS = {
    "spearman": Measure("Spearman x 100"),
    "alignment": Measure("alignment", 3, lower_is_better=True),
    "uniformity": Measure("uniformity", 3, lower_is_better=True),
}
LABELS = {
    "v_measure": Measure("V-measure"),
    "nearest_neighbor": Measure("1-NN"),
    "nearest_10": Measure("10-NN"),
    "few_shot": Measure("8-shot"),
}
SEARCH = {
    "mrr_10": Measure("MRR@10"),
    "ndcg_10": Measure("nDCG@10"),
    "map_100": Measure("MAP@100"),
    "recall_10": Measure("recall@10"),
    "recall_100": Measure("recall@100"),
    "accuracy_1": Measure("accuracy@1"),
    "accuracy_10": Measure("accuracy@10"),
}
KINDS = {"pairs": PAIRS, "labels": LABELS, "retrieval": SEARCH}
ALL = PAIRS | LABELS | SEARCH
