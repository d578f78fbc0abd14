r"""Maps of frozen embeddings that need no labels, on one page: encoders x datasets x maps.

    python -m experiments.benchmarks.search --models minilm=MINILM static=STATIC e5=E5 --cache VECTORS

Search collections: nDCG@10 of the queries. Labeled sets: share of the right label among the 10 nearest documents. Each
map is fitted on the documents; p values are of a paired randomization test over queries, against the original vectors
and against our map of the task that suits the data (search for collections, clustering for labeled sets). Settings of
our maps were selected on CISI, NPL, StackOverflow and the training file of CLINC150; the others report. The baselines
have published or usual settings, which were not tuned:

* mean removed: subtraction of the mean (Mu & Viswanath, 2018; Su et al., 2021)
* mean direction removed: projection, step 1 of our maps (Ren, Sun & Liang, 2025, arXiv 2511.11041)
* whitening, power p: eigenvalues to the power -p; 0.5 is full whitening (Su et al., 2021). Li et al. (2026, arXiv
  2603.19339) derive the power from the spectrum; their rule is not reproduced, two fixed powers stand for it
* all-but-the-top: the mean and the first d/100 directions removed (Mu & Viswanath, 2018)
* PCA, half: the first half of the principal axes
* CSLS: cosines minus the mean cosine of the 10 nearest, on both sides (Lample et al., 2018); not a map of vectors
* clustering, search: our maps; smoothed: with smoothed documents
* BM25: word search, in collections only
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from experiments.benchmarks.data import LABELED, embedded, labeled, search
from experiments.benchmarks.report import report
from informin.evaluation.encode import unit
from informin.evaluation.retrieval import load_collection, randomization_test
from informin.frozen.adapter import TASKS, LinearAdapter
from informin.frozen.bm25 import BM25
from informin.frozen.rankings import bm25_search

COLLECTIONS = ("cisi", "npl", "xquad_en")
NEAREST = 10
Pair = tuple[np.ndarray, np.ndarray]
Scores = Callable[[np.ndarray], np.ndarray]


def spectral(power: float = 0.0, removed: float = 0.0) -> Callable[[np.ndarray, np.ndarray], Pair]:
    """Return a function that centers documents and queries, and scales the principal directions of the documents.

    Args:
        power: Exponent of the singular values: 0 for centering alone, -1 for whitening.
        removed: Fraction of the d leading directions to remove, at least one; 0 for none.
    """

    def both(documents: np.ndarray, queries: np.ndarray) -> Pair:
        mean = documents.mean(0)
        _, values, directions = np.linalg.svd(documents - mean, full_matrices=False)
        scale = np.where(values > 1e-6 * values[0], np.maximum(values, 1e-12) ** power, 0.0)
        scale[: max(1, int(removed * len(scale))) if removed else 0] = 0
        matrix = (directions.T * scale) @ directions
        return unit((documents - mean) @ matrix), unit((queries - mean) @ matrix)

    return both


def adapted(smooth: bool = False, **options) -> Callable[[np.ndarray, np.ndarray], Pair]:
    """Return a function that maps documents and queries with an adapter, which is fitted on the documents."""

    def both(documents: np.ndarray, queries: np.ndarray) -> Pair:
        adapter = LinearAdapter(**options).fit(documents)
        return adapter.transform(documents, smooth=smooth), adapter.transform(queries)

    return both


def half_of_axes(documents: np.ndarray, queries: np.ndarray) -> Pair:
    """Return the first half of the principal axes of documents and queries."""
    mean = documents.mean(0)
    axes = np.linalg.svd(documents - mean, full_matrices=False)[2][: documents.shape[1] // 2].T
    return unit((documents - mean) @ axes), unit((queries - mean) @ axes)


MAPS: dict[str, Callable[[np.ndarray, np.ndarray], Pair]] = {
    "original": lambda documents, queries: (documents, queries),
    "mean removed": spectral(),
    "mean direction removed": adapted(whitening=0.0, self_weight=1.0),
    "whitening, power 0.25": spectral(-0.5),
    "whitening, power 0.5": spectral(-1.0),
    "all-but-the-top": spectral(removed=0.01),
    "PCA, half": half_of_axes,
    **{task: adapted(**options) for task, options in TASKS.items()},
    **{f"{task}, smoothed": adapted(smooth=True, **options) for task, options in TASKS.items()},
}


def csls(similarity: np.ndarray) -> np.ndarray:
    """Return cosines (m, n) minus the mean of the 10 highest of their query and of their document, times two."""
    rows, columns = (np.sort(x, axis=-1)[:, -NEAREST:].mean(-1) for x in (similarity, similarity.T))
    return 2 * similarity - rows[:, None] - columns


def results(models: list[str], names: list[str], cache: Path, data: Path) -> Iterator[tuple[str, str, str, np.ndarray]]:
    """Yield encoder, dataset, map and scores (m,)."""
    for name in names:
        documents, queries, related = (labeled if name in LABELED else search)(data, name)
        collection = None if name in LABELED else load_collection(data / "retrieval" / name)
        score = precision_of(related) if collection is None else ndcg_of(collection)
        for model in models:
            encoder = model.split("=")[0]
            x = embedded(model, cache, name, "document", documents).astype(np.float64)
            q = embedded(model, cache, name, "query", queries).astype(np.float64)
            for kind, change in MAPS.items():
                y, z = change(x, q)
                yield encoder, name, kind, score(z @ y.T)
            yield encoder, name, "CSLS", score(csls(q @ x.T))
            if collection is not None:
                bm25 = BM25.build(collection.documents, "english")
                yield encoder, name, "BM25", np.asarray(collection.scores(bm25_search(collection, bm25)[0])["ndcg_10"])


def ndcg_of(collection) -> Scores:
    def score(similarity: np.ndarray) -> np.ndarray:
        ranking = np.argsort(-similarity, axis=1, kind="stable")[:, :1000]
        return np.asarray(collection.scores(ranking)["ndcg_10"])

    return score


def precision_of(related: np.ndarray) -> Scores:
    def score(similarity: np.ndarray) -> np.ndarray:
        nearest = np.argpartition(-similarity, NEAREST, axis=1)[:, :NEAREST]
        return 100 * np.take_along_axis(related, nearest, 1).mean(1)

    return score


def cell(scores: dict[str, np.ndarray], kind: str, task: str) -> str:
    """Return a mean score; `+`, `-` against the original vectors and `>`, `<` against our map mean p below 0.05."""
    if kind not in scores:
        return ""
    signs = ""
    for other, (up, down) in (("original", "+-"), (task, "><")):
        gap = scores[kind].mean() - scores[other].mean()
        if gap and randomization_test(scores[kind], scores[other]) < 0.05:
            signs += up if gap > 0 else down
    return f"{scores[kind].mean():.2f} {signs}".strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", required=True, metavar="NAME=FOLDER")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    names = list(COLLECTIONS) + list(LABELED)
    parser.add_argument("--only", nargs="+", default=names, choices=names)
    parser.add_argument("--cache", type=Path, required=True, help="Folder of the vectors, which are embedded once.")
    args = parser.parse_args()
    columns: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    for encoder, name, kind, scores in results(args.models, args.only, args.cache, args.data):
        columns.setdefault((encoder, name), {})[kind] = scores
        print(encoder, name, kind, f"{scores.mean():.2f}", flush=True)
    kinds = dict.fromkeys(kind for scores in columns.values() for kind in scores)
    tasks = {name: "clustering" if name in LABELED else "search" for name in args.only}
    rows = [[kind, *(cell(scores, kind, tasks[name]) for (_, name), scores in columns.items())] for kind in kinds]
    means = [[*key, kind, float(x.mean())] for key, scores in columns.items() for kind, x in scores.items()]
    titles = ["map", *(f"{name}, {encoder}" for encoder, name in columns)]
    print(report("search", "Maps of frozen embeddings: nDCG@10, or % of the right label", titles, rows, means))


if __name__ == "__main__":
    main()
