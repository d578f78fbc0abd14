"""The gain of the linear adapter by the number of texts that it is fitted on, around the width of the embeddings.

    python -m experiments.adapter_size --model_name MODEL --retrieval FOLDER ... --labels FILE ... --output FILE.md

Each number of texts has twenty random draws, each of other texts. The rows are gains over the model itself: nDCG@10 on
a collection for both tasks, and the accuracy of the nearest neighbor on labeled texts for the task clustering. After
the mean are the standard deviation over draws and the number of draws that are worse than the model.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from experiments.search_system import load_separate
from experiments.tables import markdown
from informin.evaluation.encode import unit
from informin.evaluation.labels import load_labels
from informin.evaluation.neighbors import nearest
from informin.frozen.adapter import TASKS, LinearAdapter
from informin.model.embedding import encode_in_shares
from informin.model.open import load_model

SIZES = (100, 200, 300, 350, 384, 420, 500, 700, 1_000)
DRAWS = 20
SCORED = 4_000  # labeled texts
Score = Callable[[LinearAdapter | None], float]


def score_of_collection(folder: str, model) -> tuple[np.ndarray, Score]:
    """Return the embeddings of the documents, and the function from an adapter to nDCG@10."""
    collection = load_separate(folder)
    documents = encode_in_shares(model, collection.documents)
    queries = encode_in_shares(model, collection.queries)

    def score(adapter: LinearAdapter | None) -> float:
        both = [unit(x) if adapter is None else adapter.transform(x) for x in (queries, documents)]
        return float(collection.scores(np.argsort(-both[0] @ both[1].T, axis=1)[:, :10])["ndcg_10"].mean())

    return documents, score


def score_of_labels(file: str, model) -> tuple[np.ndarray, Score]:
    """Return the embeddings of labeled texts to fit on, and the function from an adapter to the 1-NN accuracy."""
    labeled = load_labels(file).distinct()
    order = np.random.default_rng(0).permutation(len(labeled.sentences))[: 3 * SCORED]
    vectors = encode_in_shares(model, [labeled.sentences[row] for row in order])
    classes = np.array(labeled.labels)[order]

    def score(adapter: LinearAdapter | None) -> float:
        x = vectors[:SCORED]
        x = unit(x) if adapter is None else adapter.transform(x)
        index, _ = nearest(x.astype(np.float32), 1)
        return 100 * float((classes[index[:, 0]] == classes[:SCORED]).mean())

    return vectors[SCORED:], score


def gains(vectors: np.ndarray, score: Score, task: str) -> list[str]:
    """Return a cell for each number of texts."""
    before = score(None)
    cells = []
    for size in SIZES:
        found = []
        for draw in range(DRAWS):
            rows = np.random.default_rng([size, draw]).permutation(len(vectors))[:size]
            found.append(score(LinearAdapter(**TASKS[task]).fit(vectors[rows])) - before)
        worse = sum(gain < 0 for gain in found)
        cells.append(f"{np.mean(found):+.2f} ± {np.std(found, ddof=1):.2f} ({worse})")
        print(task, size, cells[-1], flush=True)
    return cells


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", required=True)
    parser.add_argument("--retrieval", nargs="*", default=[], metavar="FOLDER")
    parser.add_argument("--labels", nargs="*", default=[], metavar="FILE")
    parser.add_argument("--output", required=True, metavar="FILE")
    args = parser.parse_args()
    model = load_model(args.model_name)
    rows = []
    for folder in args.retrieval:
        vectors, score = score_of_collection(folder, model)
        rows += [[f"{Path(folder).name}, {task}", *gains(vectors, score, task)] for task in TASKS]
    for file in args.labels:
        vectors, score = score_of_labels(file, model)
        rows.append([f"{Path(file).stem}, clustering", *gains(vectors, score, "clustering")])
    table = markdown("Gain by the number of texts", ["fitted on", *map(str, SIZES)], rows)
    Path(args.output).write_text(table + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
