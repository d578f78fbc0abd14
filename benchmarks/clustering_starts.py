"""Compare V-measure before and after training over many K-means starts, to see whether a gain is only chance.

    python benchmarks/clustering_starts.py BEFORE --after MODEL ... --labels FILE --bf16

A score uses 10 starts. Trained models with several seeds have 10 starts each, but the encoder before training has only
10 in total, and its score can be off by half of the gain. Here each model is clustered from as many starts as
requested. The interval is Welch's, for the difference between the mean over runs and all starts of the encoder before
training.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from scipy.stats import ttest_ind
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from informin.evaluation.geometry import unit
from informin.evaluation.labels import LabeledSentences, clustering, load_labels
from informin.models.open_model import load_model


def v_measures(model: str, labeled: LabeledSentences, starts: int, bf16: bool) -> list[float]:
    (x,) = load_model(model, bf16=bf16)(labeled.sentences).values()
    names, y = np.unique(labeled.labels, return_inverse=True)
    with threadpool_limits(1):
        return clustering(unit(x).astype(np.float32), y, len(names), starts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("--after", nargs="+", required=True, help="Models of one recipe, one per seed.")
    parser.add_argument("--labels", required=True)
    parser.add_argument("--starts", type=int, default=50)
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()
    labeled = load_labels(args.labels, "--labels").distinct()
    found = []
    for model in (args.before, *args.after):
        found.append(values := v_measures(model, labeled, args.starts, args.bf16))
        error = np.std(values, ddof=1) / len(values) ** 0.5
        print(f"{model}: {np.mean(values):.2f}, standard error {error:.2f}, {args.starts} starts", flush=True)
    before, after = found[0], [np.mean(values) for values in found[1:]]
    low, high = ttest_ind(after, before, equal_var=False).confidence_interval()
    print(f"after minus before: {np.mean(after) - np.mean(before):+.2f} ({low:+.2f} to {high:+.2f})")


if __name__ == "__main__":
    main()
