"""Measure what closed-form maps of frozen embeddings do for search, domains and general similarity.

    python benchmarks/search.py --model_name MODEL --data_dir SHARED/data --cache FOLDER [--curve [--figure FILE]]

Each map is fitted on the unlabeled documents of a collection or the training texts of a domain, and never sees queries
or test texts. Prints, in Markdown: search scores on CISI with STS-B dev through the same map; 1-NN accuracy and
V-measure of domains, and how many of the texts found for a scored text among those fitted on have its label, with and
without smoothing. "(auto)" marks the preset that `informin fit` chooses. With --curve, prints instead the gains of the
adapter that it chooses, fitted on 100 rows and more, or with neighbors searched in samples. Embeddings are cached in
FOLDER.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import matplotlib
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.maps import MAPS
from benchmarks.prediction import Data, Encode, cached, encoder_of, load_data
from benchmarks.report import machine
from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import PRESETS, HalvesTest, choose, halves, hold_out
from informin.evaluation.collections import DEPTH, Collection, load_collection
from informin.evaluation.geometry import unit
from informin.evaluation.labels import clustering
from informin.evaluation.pairs import GradedPairs, score_pairs
from informin.evaluation.retrieval_table import FUSION_DEPTH, bm25_search, fused_ranking, randomization_test
from informin.evaluation.senteval import load_stsb_dev
from informin.textfiles import read_sentences

SIZES = (100, 200, 300, 500, 1_000, 2_000, 5_000, 10_000)
SAMPLES = (500, 1_000, 2_000, 5_000)
DRAWS = 3  # random subsets of each size
ORIGINAL = "original embeddings"
GENERAL = 20_000  # Wikipedia sentences


def main() -> int:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", required=True)
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--curve", action="store_true")
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    encode = cached(encoder_of(args.model_name), args.model_name, args.cache)
    dev, collection = load_stsb_dev(args.data_dir / "senteval"), load_collection(args.data_dir / "retrieval" / "cisi")
    domains = [data for data in load_data(args.data_dir) if data.classes is not None]
    print(f"{Path(args.model_name).name}, {machine()}\n")
    if args.curve:
        known = [*load_data(args.data_dir, most_fitted=None), wikipedia(args.data_dir, dev)]
        curves = {data.name: curve(data, encode) for data in known}
        if args.figure:
            draw(curves, args.figure)
        return 0
    search_table(collection, encode, dev)
    for data in domains:
        domain_table(data, encode, dev)
    return 0


def through(adapter, encode, dev: GradedPairs) -> float:
    """Return STS-B dev through a map."""
    return score_pairs(lambda texts: adapter.transform(encode(list(texts))), dev)["spearman"]


def as_is(x: np.ndarray) -> LinearAdapter:
    """Return an adapter for rows (n, d) that only scales them to unit length."""
    adapter = LinearAdapter(whitening=0.0, self_weight=1.0).fit(x)
    adapter.coef_ = np.eye(x.shape[1])
    return adapter


@dataclass(frozen=True)
class Chooser:
    """Chooses the preset for texts or for a sample of them, as `informin fit` does.

    Args:
        texts: N texts.
        vectors: (N, d) their embeddings.
        first: (N, d) embeddings of their first halves.
        second: (N, d) embeddings of their second halves.
    """

    texts: list[str]
    vectors: np.ndarray
    first: np.ndarray
    second: np.ndarray

    @classmethod
    def of(cls, texts: list[str], encode: Encode) -> "Chooser":
        first, second = zip(*map(halves, texts))
        return cls(texts, encode(texts), encode(list(first)), encode(list(second)))

    def __call__(self, rows: np.ndarray) -> tuple[str, dict]:
        """Return the name and the options of the preset for some of the texts."""
        held_out = hold_out([self.texts[i] for i in rows])
        kept = np.delete(rows, held_out)
        test = HalvesTest(self.vectors[kept], self.first[rows[held_out]], self.second[rows[held_out]])
        found = choose([test])
        return found.preset, PRESETS[found.preset]


def maps_of(texts: list[str], encode: Encode) -> dict:
    """Return the maps by name, and mark the preset that is chosen for the texts."""
    chosen, _ = Chooser.of(texts, encode)(np.arange(len(texts)))
    return {name + (" (auto)" if name == f"LinearAdapter, {chosen}" else ""): make for name, make in MAPS.items()}


def wikipedia(data_dir: Path, dev: GradedPairs) -> Data:
    """Return Wikipedia sentences, with STS-B dev as the score."""
    lines = islice(read_sentences(data_dir / "wiki" / "enwiki_1m.txt.gz", None), GENERAL + 1_000)
    texts = list(dict.fromkeys(lines))[:GENERAL]
    order = {text: i for i, text in enumerate(dev.texts())}

    def general(_: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.array([score_pairs(lambda some: x[[order[text] for text in some]], dev)["spearman"]])

    return Data("Wikipedia, STS-B dev", texts, dev.texts(), general, False)


def search_table(collection: Collection, encode, dev: GradedPairs) -> None:
    """Print the scores of rankings of a collection."""
    documents, queries = encode(collection.documents), encode(collection.queries)

    def rank(q: np.ndarray, d: np.ndarray) -> np.ndarray:
        return collection.rank(unit(q).astype(np.float32), unit(d).astype(np.float32), FUSION_DEPTH)

    rows: dict[str, tuple[np.ndarray, float | None, float | None]] = {}
    words, base = bm25_search(collection, FUSION_DEPTH)[0], rank(queries, documents)
    rows["BM25 (bm25s, English stop words)"] = (words, None, None)
    before, adapter = as_is(documents), LinearAdapter(**PRESETS["documents"]).fit(documents)
    rows[ORIGINAL] = (base, through(before, encode, dev), None)
    rows["reciprocal rank fusion of the two"] = (fused_ranking(base, words, len(documents)), None, None)
    for name, make in maps_of(collection.documents, encode).items():
        start = time.perf_counter()
        fitted = make().fit(documents)
        seconds = time.perf_counter() - start
        ranking = rank(fitted.transform(queries), fitted.transform(documents))
        rows[name] = (ranking, through(fitted, encode, dev), seconds)
    for name, fitted in {ORIGINAL: before, "LinearAdapter, documents": adapter}.items():
        start = time.perf_counter()
        smoothed = rank(fitted.transform(queries), fitted.smooth(documents))
        rows[f"{name}, smoothed"] = (smoothed, through(fitted, encode, dev), time.perf_counter() - start)
    baseline = collection.scores(base[:, :DEPTH])["ndcg_10"]
    print(f"| {collection.name} | nDCG@10 | recall@100 | MAP@100 | p, nDCG@10 | STS-B dev | seconds |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, (ranking, general, seconds) in rows.items():
        scores = collection.scores(ranking[:, :DEPTH])
        p = "" if ranking is base else f"{randomization_test(scores['ndcg_10'], baseline):.4f}"
        print(f"| {name} | {scores['ndcg_10'].mean():.2f} | {scores['recall_100'].mean():.2f} | "
              f"{scores['map_100'].mean():.2f} | {p} | {shown(general)} | {shown(seconds)} |")  # fmt: skip


def shown(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def domain_table(data: Data, encode, dev: GradedPairs) -> None:
    """Print the scores of a domain."""
    texts, scored = encode(data.texts), encode(data.scored)
    made = maps_of(data.texts, encode).items()
    fits = {ORIGINAL: as_is(texts)} | {name: make().fit(texts) for name, make in made}
    print(f"\n| {data.name}, {len(texts):,} fitted, {len(scored):,} scored | 1-NN | V-measure | STS-B dev |")
    print("| --- | ---: | ---: | ---: |")
    for name, fitted in fits.items():
        x = fitted.transform(scored)
        v = np.mean(clustering(unit(x).astype(np.float32), data.classes, len(set(data.classes))))
        print(
            f"| {name} | {data.score(texts, x).mean():.2f} | {v:.2f} | {through(fitted, encode, dev):.2f} |", flush=True
        )
    print(f"\n| {data.name}, same label among the nearest, % | 10 | 100 | 10, smoothed | 100, smoothed |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, fitted in fits.items():
        if name == ORIGINAL or "(auto)" in name:
            queries = fitted.transform(scored)
            parts = [same_label(data, queries, x) for x in (fitted.transform(texts), fitted.smooth(texts))]
            print(f"| {name} | " + " | ".join(f"{value:.2f}" for part in parts for value in part) + " |", flush=True)


def same_label(data: Data, scored: np.ndarray, texts: np.ndarray) -> list[float]:
    """Return how many of the 10 and of the 100 nearest texts have the label of the scored text, in percent."""
    assert data.classes is not None and data.text_classes is not None
    hits = []
    for start in range(0, len(scored), 1_000):
        nearest = np.argsort(-(scored[start : start + 1_000] @ texts.T), axis=1, kind="stable")[:, :100]
        hits.append(data.text_classes[nearest] == data.classes[start : start + 1_000, None])
    found = np.concatenate(hits)
    return [100 * float(found[:, :depth].mean()) for depth in (10, 100)]


def curve(data: Data, encode) -> dict[str, list[tuple[int, float, float]]]:
    """Print and return gains by the number of rows fitted on, and by the size of the sample of neighbors.

    Returns:
        (size, mean gain, smallest gain) over random subsets, for each of the two.
    """
    texts, scored, chooser = encode(data.texts), encode(data.scored), Chooser.of(data.texts, encode)
    before = data.score(texts, scored).mean()
    chosen: dict[int, list[str]] = {}

    def gain(rows: np.ndarray, preset: dict) -> float:
        adapter = LinearAdapter(**preset).fit(texts[rows])
        return float(data.score(adapter.transform(texts), adapter.transform(scored)).mean() - before)

    found: dict[str, list[tuple[int, float, float]]] = {"fitted on": [], "neighbors in": []}
    orders = [np.random.default_rng(seed).permutation(len(texts)) for seed in range(DRAWS)]
    preset: dict = {}
    for size in [*(size for size in SIZES if size < len(texts)), len(texts)]:
        gains = []
        for order in orders if size < len(texts) else orders[:1]:
            name, preset = chooser(order[:size])
            chosen.setdefault(size, []).append(name)
            gains.append(gain(order[:size], preset))
        found["fitted on"].append((size, float(np.mean(gains)), min(gains)))
    print(f"\n{data.name}, presets: " + ", ".join(f"{size:,}: {' '.join(names)}" for size, names in chosen.items()))
    for size in [size for size in SAMPLES if size < len(texts)]:
        gains = [gain(orders[0], preset | {"max_samples": size, "random_state": seed}) for seed in range(DRAWS)]
        found["neighbors in"].append((size, float(np.mean(gains)), min(gains)))
    for name, points in found.items():
        line = ", ".join(f"{size:,}: {mean:+.2f} ({least:+.2f})" for size, mean, least in points)
        print(f"\n{data.name}, {name} rows: mean gain (smallest of {DRAWS} draws): {line}", flush=True)
    return found


def draw(curves: dict[str, dict[str, list[tuple[int, float, float]]]], path: Path) -> None:
    """Draw gain by the number of rows, one line per data set."""
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True, layout="constrained")
    for axis, name, title in zip(
        axes, ("fitted on", "neighbors in"), ("rows to fit on", "rows in which neighbors are searched")
    ):
        for label, (data, found) in zip("os^DvP", curves.items()):
            sizes, means, least = zip(*found[name]) if found[name] else ((), (), ())
            (line,) = axis.plot(sizes, means, marker=label, label=data)
            axis.fill_between(sizes, least, means, alpha=0.15, color=line.get_color())
        axis.axhline(0, color="gray", linewidth=0.8)
        axis.set(xscale="log", xlabel=title)
    axes[0].set_ylabel("gain, points (nDCG@10, 1-NN or STS-B dev)")
    axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
