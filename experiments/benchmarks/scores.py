r"""Expected against actual false hits: is the cosine of `threshold` the one that unrelated texts reach?

For each encoder, collection and map: the threshold from the unlabeled documents, and how many documents with another
label than the query are above it, per query. In search collections, those that are not judged relevant.

    python -m benchmarks.scores --models minilm=MINILM e5=E5 static=WORDLLAMA --cache VECTORS \
        --output benchmarks/results/scores
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.prediction import wordllama
from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import PRESETS
from informin.adapters.scores import unrelated_scores
from informin.evaluation.collections import load_collection
from informin.evaluation.geometry import unit
from informin.evaluation.labels import load_labels
from informin.files import write_json
from informin.models.open_model import load_model

DOCUMENTS, QUERIES = 5_000, 2_500  # sentences of a labeled set
LABELED = {  # files of the documents and of the queries, and whether the estimator was selected on the set
    "stackoverflow": ("stackoverflow.tsv", None, True),
    "clinc-train": ("clinc150_train.tsv", None, True),
    "banking-test": ("banking77_train.tsv", "banking77_test.tsv", False),
    "clinc-test": ("clinc150_train.tsv", "clinc150_test.tsv", False),
}
SEARCH = ("cisi", "npl")
PROMISES = (0.3, 1, 3, 10)
MAPS: dict[str, dict[str, Any] | None] = {"original": None, **PRESETS}
COLUMNS = ["encoder", "data", "map", "threshold", *(f"expected {promise}" for promise in PROMISES)]


def labeled(data: Path, name: str) -> tuple[list[str], list[str], np.ndarray]:
    """Return documents, queries and whether each query (m) and document (n) share a label (m, n)."""
    first, second, _ = LABELED[name]
    found = load_labels(data / "domain" / first, "domain").distinct()
    order = np.random.default_rng(0).permutation(len(found.sentences))
    fit, rest = order[:DOCUMENTS], order[DOCUMENTS:][-QUERIES:]
    asked = found
    if second:
        asked = load_labels(data / "domain" / second, "domain").distinct()
        rest = np.random.default_rng(0).permutation(len(asked.sentences))[:QUERIES]
    labels = np.array([str(asked.labels[i]) for i in rest])[:, None] == np.array([str(found.labels[i]) for i in fit])
    return [found.sentences[i] for i in fit], [asked.sentences[i] for i in rest], labels


def search(data: Path, name: str) -> tuple[list[str], list[str], np.ndarray]:
    """Return documents, queries and the judgments (m, n)."""
    collection = load_collection(data / "retrieval" / name)
    relevant = np.zeros((len(collection.queries), len(collection.documents)), bool)
    for row, grades in enumerate(collection.grades):
        relevant[row, list(grades)] = True
    return collection.documents, collection.queries, relevant


def embedded(model: str, cache: Path, data: str, part: str, texts: list[str]) -> np.ndarray:
    """Return the embeddings of texts, from the cache if they are there."""
    name, folder = model.split("=", 1)
    path = cache / f"{name}-{data}-{part}.npy"
    if not path.exists():
        prompt = "query: " if part == "scored" or data in LABELED else "passage: "
        if name == "static":
            vectors = wordllama(Path(folder))(texts)
        else:
            vectors = load_model(folder, ("mean",), 256, prompt=prompt if name == "e5" else None)(texts)["mean"]
        np.save(path, np.asarray(vectors, np.float32))
    found = np.load(path)
    if len(found) != len(texts):
        raise SystemExit(f"{path} has {len(found)} rows for {len(texts)} texts.")
    return unit(found)


def rows(models: list[str], cache: Path, data: Path) -> Iterator[dict]:
    """Yield the figures of each encoder, data set and map."""
    for name in (*LABELED, *SEARCH):
        documents, queries, related = (labeled if name in LABELED else search)(data, name)
        for model in models:
            x = embedded(model, cache, name, "docs", documents)
            q = embedded(model, cache, name, "scored", queries)
            for kind, options in MAPS.items():
                adapter = None if options is None else LinearAdapter(**options).fit(x)
                both = (x, q) if adapter is None else (adapter.transform(x), adapter.transform(q))
                yield {"encoder": model.split("=")[0], "data": name, "map": kind} | measure(x, *both, related)


def measure(vectors: np.ndarray, documents: np.ndarray, queries: np.ndarray, related: np.ndarray) -> dict:
    """Return thresholds and real false hits per query of each promise."""
    scores = unrelated_scores(vectors, documents)
    assert scores is not None
    false = np.sort((queries @ documents.T)[~related])
    thresholds = {str(promise): scores.threshold(promise) for promise in PROMISES}
    above = {name: len(false) - np.searchsorted(false, value, "right") for name, value in thresholds.items()}
    return {"thresholds": thresholds, "real": {name: float(count / len(queries)) for name, count in above.items()}}


def table(found: list[dict]) -> str:
    """Return a table of real false hits per query, in Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|---|---|" + "---:|" * (len(COLUMNS) - 3)]
    for row in found:
        values = [f"{row['thresholds']['1']:.3f}", *(f"{row['real'][str(promise)]:.2f}" for promise in PROMISES)]
        lines.append("| " + " | ".join([row["encoder"], row["data"], row["map"], *values]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", required=True, metavar="NAME=FOLDER", help="minilm, e5 and static.")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--cache", type=Path, required=True, help="Folder of the vectors, which are embedded once.")
    parser.add_argument("--output", type=Path, required=True, help="Name of the .json and .md files.")
    args = parser.parse_args()
    found = []
    for row in rows(args.models, args.cache, args.data):
        found.append(row)
        print(row["encoder"], row["data"], row["map"], row["real"], flush=True)
        write_json(args.output.with_suffix(".json"), found)
    text = table(found)
    args.output.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
