r"""Maps of frozen embeddings that need no labels, on one page: encoders x collections x maps.

    python -m benchmarks.baselines --models minilm=MINILM static=WORDLLAMA e5=E5 --cache VECTORS \
        --output benchmarks/results/baselines

CISI and NPL: nDCG@10 of the queries. Labeled sets: share of the right label among the 10 nearest documents. Each map is
fitted on the documents; p values are of a paired permutation test over queries, against the original vectors and
against the map of the preset that suits the data (documents for search, short_texts for labeled sets). Settings of the
presets were selected on CISI, NPL, StackOverflow and the training file of CLINC150; Banking77 and the test file of
CLINC150 report. The baselines have published or usual settings, which were not tuned:

* mean removed: subtraction of the mean (Mu & Viswanath, 2018; Su et al., 2021)
* mean direction removed: projection, step 1 of our maps (Ren, Sun & Liang, 2025, arXiv 2511.11041)
* whitening, power p: eigenvalues to the power -p; 0.5 is full whitening (Su et al., 2021). Li et al. (2026, arXiv
  2603.19339) derive the power from the spectrum; their rule is not reproduced, two fixed powers stand for it
* all-but-the-top: the mean and the first d/100 directions removed (Mu & Viswanath, 2018)
* PCA, half: the first half of the principal axes
* CSLS: cosines minus the mean cosine of the 10 nearest, on both sides (Lample et al., 2018); not a map of vectors
* documents, short_texts: our maps; smoothed: with smoothed documents
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.maps import SpectralMap
from benchmarks.scores import LABELED, SEARCH, embedded, labeled, search
from benchmarks.significance import permutation_p
from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import PRESETS
from informin.evaluation.collections import load_collection
from informin.evaluation.geometry import unit
from informin.files import write_json

NEAREST = 10
Pair = tuple[np.ndarray, np.ndarray]
Scores = Callable[[np.ndarray], np.ndarray]


def mapped(make: Callable) -> Callable[[np.ndarray, np.ndarray], Pair]:
    """Return a function that maps documents and queries with a map that is fitted on the documents."""

    def both(documents: np.ndarray, queries: np.ndarray) -> Pair:
        found = make().fit(documents)
        return found.transform(documents), found.transform(queries)

    return both


def smoothed(preset: str) -> Callable[[np.ndarray, np.ndarray], Pair]:
    """Return a function as `mapped`, with smoothed documents."""

    def both(documents: np.ndarray, queries: np.ndarray) -> Pair:
        adapter = LinearAdapter(**PRESETS[preset]).fit(documents)
        return adapter.smooth(documents), adapter.transform(queries)

    return both


def principal(documents: np.ndarray, queries: np.ndarray) -> Pair:
    """Return the first half of the principal axes of documents and queries."""
    mean = documents.mean(0)
    axes = np.linalg.svd(documents - mean, full_matrices=False)[2][: documents.shape[1] // 2].T
    return unit((documents - mean) @ axes), unit((queries - mean) @ axes)


MAPS: dict[str, Callable[[np.ndarray, np.ndarray], Pair]] = {
    "original": lambda documents, queries: (documents, queries),
    "mean removed": mapped(SpectralMap),
    "mean direction removed": mapped(lambda: LinearAdapter(whitening=0.0, self_weight=1.0)),
    "whitening, power 0.25": mapped(lambda: SpectralMap(-0.5)),
    "whitening, power 0.5": mapped(lambda: SpectralMap(-1.0)),
    "all-but-the-top": lambda documents, queries: mapped(lambda: SpectralMap(removed=max(1, queries.shape[1] // 100)))(
        documents, queries
    ),
    "PCA, half": principal,
    "short_texts": mapped(lambda: LinearAdapter(**PRESETS["short_texts"])),
    "documents": mapped(lambda: LinearAdapter(**PRESETS["documents"])),
    "short_texts, smoothed": smoothed("short_texts"),
    "documents, smoothed": smoothed("documents"),
}
CSLS = "CSLS"


def csls(similarity: np.ndarray) -> np.ndarray:
    """Return cosines (m, n) minus the mean of the 10 highest of their query and of their document, times two."""
    rows, columns = (np.sort(x, axis=-1)[:, -NEAREST:].mean(-1) for x in (similarity, similarity.T))
    return 2 * similarity - rows[:, None] - columns


def results(models: list[str], cache: Path, data: Path) -> Iterator[dict]:
    """Yield the scores (m,) of each encoder, data set and map."""
    for name in (*SEARCH, *LABELED):
        documents, queries, related = (search if name in SEARCH else labeled)(data, name)
        score = _ndcg(data / "retrieval" / name) if name in SEARCH else _precision(related)
        for model in models:
            x = embedded(model, cache, name, "docs", documents).astype(np.float64)
            q = embedded(model, cache, name, "scored", queries).astype(np.float64)
            for kind, change in MAPS.items():
                y, z = change(x, q)
                yield {"encoder": model.split("=")[0], "data": name, "map": kind, "scores": score(z @ y.T)}
            yield {"encoder": model.split("=")[0], "data": name, "map": CSLS, "scores": score(csls(q @ x.T))}


def _ndcg(folder: Path) -> Scores:
    collection = load_collection(folder)

    def score(similarity: np.ndarray) -> np.ndarray:
        ranking = np.argsort(-similarity, axis=1, kind="stable")[:, :1000]
        return np.asarray(collection.scores(ranking)["ndcg_10"])

    return score


def _precision(related: np.ndarray) -> Scores:
    def score(similarity: np.ndarray) -> np.ndarray:
        nearest = np.argpartition(-similarity, NEAREST, axis=1)[:, :NEAREST]
        return 100 * np.take_along_axis(related, nearest, 1).mean(1)

    return score


def compared(found: list[dict]) -> list[dict]:
    """Return the mean scores with p values against the original vectors and against our map."""
    cells: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    for row in found:
        cells.setdefault((row["encoder"], row["data"]), {})[row["map"]] = row["scores"]
    rows = []
    for (encoder, data), maps in cells.items():
        ours = maps["documents" if data in SEARCH else "short_texts"]
        for kind, scores in maps.items():
            gaps = {"original": scores - maps["original"], "ours": scores - ours}
            p = {f"p_{name}": permutation_p(gap) if gap.any() else None for name, gap in gaps.items()}
            rows.append({"encoder": encoder, "data": data, "map": kind, "score": float(scores.mean())} | p)
    return rows


def table(rows: list[dict]) -> str:
    """Return one table in Markdown: a row for each map, a column for each encoder and data set.

    `+` and `-`: p below 0.05 against the original vectors; `>` and `<`: against our map.
    """
    columns = list(dict.fromkeys((row["encoder"], row["data"]) for row in rows))
    best = {(row["encoder"], row["data"], row["map"]): row for row in rows}
    lines = ["| map | " + " | ".join(f"{data}, {encoder}" for encoder, data in columns) + " |"]
    lines.append("|---|" + "---:|" * len(columns))
    for kind in dict.fromkeys(row["map"] for row in rows):
        cells = []
        for encoder, data in columns:
            row, raw = best[encoder, data, kind], best[encoder, data, "original"]
            ours = best[encoder, data, "documents" if data in SEARCH else "short_texts"]
            signs = _sign(row["p_original"], row["score"] - raw["score"], "+-")
            signs += _sign(row["p_ours"], row["score"] - ours["score"], "><")
            cells.append(f"{row['score']:.2f}{signs}")
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _sign(p: float | None, gap: float, signs: str) -> str:
    return "" if p is None or p >= 0.05 else f" {signs[0] if gap > 0 else signs[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", required=True, metavar="NAME=FOLDER", help="minilm, static and e5.")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--cache", type=Path, required=True, help="Folder of the vectors, which are embedded once.")
    parser.add_argument("--output", type=Path, required=True, help="Name of the .json and .md files.")
    args = parser.parse_args()
    found = []
    for row in results(args.models, args.cache, args.data):
        found.append(row)
        print(row["encoder"], row["data"], row["map"], f"{row['scores'].mean():.2f}", flush=True)
    rows = compared(found)
    write_json(args.output.with_suffix(".json"), rows)
    args.output.with_suffix(".md").write_text(table(rows), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
