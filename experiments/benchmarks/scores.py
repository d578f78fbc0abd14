r"""Expected against actual false hits: is the cosine of `threshold` the one that unrelated texts reach?

For each encoder, dataset and map: the threshold from the unlabeled documents, and for each query, how many
documents above it have a label that differs from the query's. In search collections, those that are not judged
relevant.

    python -m experiments.benchmarks.scores --models minilm=MINILM e5=E5 static=STATIC --cache VECTORS
"""

import argparse
from pathlib import Path

import numpy as np

from experiments.benchmarks.data import LABELED, embedded, labeled, search
from experiments.benchmarks.report import report
from informin.frozen.adapter import TASKS, LinearAdapter
from informin.frozen.unrelated import unrelated_scores

COLLECTIONS = ("cisi", "npl")
PROMISES = (0.3, 1, 3, 10)


def measure(vectors: np.ndarray, documents: np.ndarray, queries: np.ndarray, related: np.ndarray) -> dict:
    """Return the thresholds and the actual false hits per query of each promise."""
    scores = unrelated_scores(vectors, documents)
    assert scores is not None
    false = np.sort((queries @ documents.T)[~related])
    thresholds = [scores.threshold(promise) for promise in PROMISES]
    hits = [float((len(false) - np.searchsorted(false, value, "right")) / len(queries)) for value in thresholds]
    return {"thresholds": thresholds, "hits": hits}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", required=True, metavar="NAME=FOLDER")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--cache", type=Path, required=True, help="Folder of the vectors, which are embedded once.")
    args = parser.parse_args()
    rows, measured = [], []
    for name in (*LABELED, *COLLECTIONS):
        documents, queries, related = (labeled if name in LABELED else search)(args.data, name)
        for model in args.models:
            x = embedded(model, args.cache, name, "document", documents)
            q = embedded(model, args.cache, name, "query", queries)
            for task, options in {"original": None, **TASKS}.items():
                adapter = None if options is None else LinearAdapter(**options).fit(x)
                both = (x, q) if adapter is None else (adapter.transform(x), adapter.transform(q))
                found = measure(x, *both, related)
                names = [model.split("=")[0], name, task]
                measured.append([*names, found])
                hits = [f"{count:.2f}" for count in found["hits"]]
                rows.append([", ".join(names), f"{found['thresholds'][1]:.3f}", *hits])
                print(*rows[-1], flush=True)
    columns = ("encoder, data, map", "threshold", *(f"expected {promise}" for promise in PROMISES))
    print(report("scores", "False hits per query at the score threshold", columns, rows, measured))


if __name__ == "__main__":
    main()
