"""Compare the logistic regressions of SentEval's cross-validation, solved jointly and one by one with scikit-learn.

    python benchmarks/transfer_regressions.py --model_name MODEL --pooler mean --senteval_dir SENTEVAL --task CR

Both solve the same problems on the embeddings of a real task: 11 training sets for each outer fold, its own and those
of its ten inner folds, with six values of C each, in one process. Embeddings are float64 for scikit-learn, whose
solvers stop too early in float32.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from informin.evaluation.logistic import LogisticPath
from informin.evaluation.senteval import BINARY, load_task
from informin.evaluation.transfer import FOLDS, GRID, SEED
from informin.models.open_model import load_model


def training_sets(labels: np.ndarray, outer_folds: int) -> np.ndarray:
    """Return masks (N, 11 outer_folds) of the training rows of each outer fold and of its ten inner folds."""
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=SEED)
    sets = []
    for outer, _ in list(folds.split(labels, labels))[:outer_folds]:
        sets += [outer, *(outer[inner] for inner, _ in folds.split(outer, labels[outer]))]
    masks = np.zeros((len(labels), len(sets)), dtype=bool)
    for i, rows in enumerate(sets):
        masks[rows, i] = True
    return masks


def together(x: np.ndarray, y: np.ndarray, masks: np.ndarray) -> np.ndarray:
    path = LogisticPath(torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(masks))
    return np.stack([path.decision_values(2.0**t).numpy() for t in GRID["nested"]])


def one_by_one(x: np.ndarray, y: np.ndarray, masks: np.ndarray, solver: str) -> np.ndarray:
    x = x.astype(np.float64)
    values = np.empty((len(GRID["nested"]), *masks.shape))
    for i, t in enumerate(GRID["nested"]):
        for j, mask in enumerate(masks.T):
            model = LogisticRegression(C=2.0**t, solver=solver, max_iter=2000).fit(x[mask], y[mask])
            values[i, :, j] = model.decision_function(x)
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", required=True)
    parser.add_argument("--pooler", default="auto")
    parser.add_argument("--senteval_dir", required=True, help="SentEval's data/downstream.")
    parser.add_argument("--task", choices=BINARY, default="CR")
    parser.add_argument("--outer_folds", type=int, default=FOLDS, help="Use fewer folds for a faster run.")
    parser.add_argument(
        "--solver", nargs="+", default=["lbfgs"], help="Solvers of scikit-learn, such as lbfgs or newton-cholesky."
    )
    args = parser.parse_args()
    task = load_task(args.senteval_dir, args.task)
    encoder = load_model(args.model_name, [args.pooler])
    x, y = encoder(task.texts[0])[encoder.poolers[0]], task.labels == 1
    masks = training_sets(y, args.outer_folds)
    print(
        f"{args.task}: {len(y):,} sentences of {x.shape[1]} dimensions; {masks.shape[1]} x {len(GRID['nested'])} fits"
    )
    start = time.perf_counter()
    ours = together(x, y, masks)
    seconds = time.perf_counter() - start
    print(f"together                       {seconds:7.2f} s")
    for solver in args.solver:
        start = time.perf_counter()
        theirs = one_by_one(x, y, masks, solver)
        taken = time.perf_counter() - start
        differing = ((ours > 0) != (theirs > 0))[:, ~masks].mean()
        print(
            f"scikit-learn, {solver:<16} {taken:7.2f} s, {taken / seconds:.0f} times as long; {100 * differing:.3f}% "
            "of the predictions outside the training sets differ"
        )


if __name__ == "__main__":
    main()
