r"""What windows are worth: nDCG@10 on a collection whose documents exceed a small maximum length.

    python -m benchmarks.windows --models minilm=MINILM e5=E5 --cache VECTORS --output benchmarks/results/windows

Documents are truncated to the length, read in windows of it, or truncated to 256 tokens. Queries are the same.
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.scores import embedded
from benchmarks.significance import permutation_p
from informin.evaluation.collections import Collection, load_collection
from informin.evaluation.geometry import unit
from informin.files import write_json
from informin.models.open_model import load_model
from informin.models.windows import Windows


def ndcg(collection: Collection, documents: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Return nDCG@10 (m,) of each query, times 100."""
    ranking = collection.rank(unit(queries).astype(np.float32), unit(documents).astype(np.float32))
    return np.asarray(collection.scores(ranking)["ndcg_10"])


def rows(model: str, cache: Path, collection: Collection, length: int) -> list[dict]:
    """Return the scores of a model: truncated to the length, in windows of it, and truncated to 256 tokens."""
    name, folder = model.split("=", 1)
    queries = embedded(model, cache, collection.name, "scored", collection.queries)
    short = load_model(folder, ("mean",), length, prompt="passage: " if name == "e5" else None)
    cut = short(collection.documents)["mean"]
    number = len(short.truncated)
    found = {f"truncated to {length}": cut, f"windows of {length}": Windows(short)(collection.documents)["mean"]}
    found["truncated to 256"] = embedded(model, cache, collection.name, "docs", collection.documents)
    scores = {how: ndcg(collection, documents, queries) for how, documents in found.items()}
    first = scores[f"truncated to {length}"]
    return [
        {"model": name, "documents": how, "ndcg_10": float(score.mean()), "truncated": number}
        | {"p": None if score is first else permutation_p(score - first)}
        for how, score in scores.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", required=True, metavar="NAME=FOLDER", help="minilm and e5.")
    parser.add_argument("--collection", type=Path, default=Path("../shared/data/retrieval/cisi"))
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--cache", type=Path, required=True, help="Folder of the vectors at 256 tokens.")
    parser.add_argument("--output", type=Path, required=True, help="Name of the .json and .md files.")
    args = parser.parse_args()
    collection, found = load_collection(args.collection), []
    for model in args.models:
        found += rows(model, args.cache, collection, args.length)
        print(found[-3:], flush=True)
        write_json(args.output.with_suffix(".json"), found)
    lines = ["| encoder | documents | nDCG@10 | p |", "|---|---|---:|---:|"]
    for row in found:
        p = "" if row["p"] is None else f"{row['p']:.3f}"
        lines.append(f"| {row['model']} | {row['documents']} | {row['ndcg_10']:.2f} | {p} |")
    args.output.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
