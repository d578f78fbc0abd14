r"""Does a criterion without labels order models as their scores do?

For each model, pooling and data set, measure criteria on unlabeled texts and the real score: nDCG@10 on CISI, accuracy
of the nearest neighbor on domains. A pair of models on the same data is right if the criterion and the score prefer the
same one.

    python benchmarks/comparison.py --model_name MODEL ... --data_dir SHARED/data --cache FOLDER \
        --output results/comparison.json

A model folder without config.json is read as the unpacked wordllama package. Criteria:

* halves: rank of a text's second half among others, for its first half (the criterion of `informin compare`)
* halves, adapted: the same with the default adapter, fitted on other texts
* crop, keywords, beginning: other queries made from a text; see benchmarks/prediction.py
* dimensions; isotropy: minus the mean cosine between texts; effective rank of the embeddings
* neighbors as by words: overlap of the 10 nearest texts with those by TF-IDF
* neighbors as by the other models: overlap with those of the other models, as published
"""

import argparse
import hashlib
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from sklearn.feature_extraction.text import TfidfVectorizer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.prediction import Data, load_data, tests_of, wordllama
from benchmarks.report import machine
from informin.adapters.comparison import HalvesScore, difference, mean_cosine
from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import MOST_ALIKE
from informin.adapters.rows import nearest_rows
from informin.encoders.encoder import load_encoder
from informin.evaluation.geometry import effective_rank, unit
from informin.files import write_json

POOLINGS = ("mean", "cls", "embeddings_last", "first_last", "last2")
PUBLISHED = "mean"  # the pooling that each of these models was trained or published with
RETRIEVAL = ("halves", "crop", "keywords", "beginning")  # by log rank, lower is better
# Of whole texts: one number, higher is better.
WHOLE = ("dimensions", "isotropy", "effective rank", "neighbors as by words", "neighbors as by the other models")
CLOSE = 5.0  # points between two scores
SAMPLE = 2_000  # texts whose neighbors are compared
Encode = Callable[[list[str]], dict[str, np.ndarray]]


def encoder_of(name: str, folder: Path) -> Encode:
    """Return the function that embeds texts with every pooling of a model, and keeps the embeddings on disk."""
    loaded: list[Encode] = []

    def load() -> Encode:
        if Path(name).is_dir() and not Path(name, "config.json").exists():
            static = wordllama(Path(name))
            return lambda texts: {PUBLISHED: static(texts)}
        return load_encoder(name, POOLINGS, 256, 64)

    def encode(texts: list[str]) -> dict[str, np.ndarray]:
        digest = hashlib.sha256("\0".join([name, *texts]).encode()).hexdigest()[:24]
        path = folder / f"{digest}.npz"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            if not loaded:
                loaded.append(load())
            np.savez(path, **loaded[0](texts))
        with np.load(path) as file:
            return dict(file)

    return encode


def neighbors(vectors: np.ndarray) -> np.ndarray:
    """Return the indices (n, 10) of the nearest rows."""
    x = torch.from_numpy(unit(vectors).astype(np.float64))
    return nearest_rows(x, x, 10, first=0)[0].numpy()


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    """Return the mean fraction of common neighbors."""
    return float(np.mean([len(np.intersect1d(a, b)) / len(a) for a, b in zip(one, other)]))


def measure(name: str, encode: Encode, data: Data) -> list[dict]:
    """Return a row per pooling, with the score and all criteria that need no other model."""
    whole, scored = encode(data.texts), encode(data.scored)
    order = np.random.default_rng(0).permutation(len(data.texts))[:SAMPLE]
    words = TfidfVectorizer(stop_words="english", sublinear_tf=True).fit_transform([data.texts[i] for i in order])
    similarity = (words @ words.T).toarray() - 2 * np.eye(len(order))
    by_words = np.argsort(-similarity, axis=1, kind="stable")[:, :10]
    found = []
    for pooling, vectors in whole.items():
        tests = tests_of(data, lambda texts, pooling=pooling: encode(texts)[pooling], vectors)
        own = neighbors(vectors[order])
        row = {
            "model": Path(name).name, "pooling": pooling, "data": data.name, "report": data.report,
            "score": data.score(vectors, scored[pooling]), "mean_cosine": mean_cosine(vectors),
            "log_ranks": {key: tests[key].log_ranks(None) for key in RETRIEVAL}, "neighbors": own,
            "adapted": tests["halves"].log_ranks(LinearAdapter().fit(tests["halves"].fit_on)),
            "dimensions": vectors.shape[1], "isotropy": -mean_cosine(vectors),
            "effective rank": effective_rank(unit(vectors[order])), "neighbors as by words": overlap(own, by_words),
        }  # fmt: skip
        found.append(row)
    return found


def add_consensus(rows: list[dict]) -> None:
    """Add the overlap of the neighbors with those of the other models, as published, on the same data."""
    for row in rows:
        others = [r for r in rows if r["data"] == row["data"] and r["pooling"] == PUBLISHED and r is not row]
        others = [r for r in others if r["model"] != row["model"]]
        row["neighbors as by the other models"] = float(
            np.mean([overlap(row["neighbors"], other["neighbors"]) for other in others])
        )


def pairs_of(rows: list[dict]) -> list[dict]:
    """Return all pairs on the same data: the gap of the scores, and the gap of each criterion, above 0 if alike."""
    pairs = []
    for one, other in combinations(rows, 2):
        if one["data"] != other["data"] or one["score"] == other["score"]:
            continue
        better, worse = (one, other) if one["score"] > other["score"] else (other, one)
        gaps = {key: better[key] - worse[key] for key in WHOLE}
        clear = {}
        for key in (*RETRIEVAL, "halves, adapted"):
            ranks = [r["adapted"] if key == "halves, adapted" else r["log_ranks"][key] for r in (better, worse)]
            gap = difference(*(HalvesScore(log_ranks, None) for log_ranks in ranks))
            gaps[key], clear[key] = -gap.mean, gap.clear
        pairs.append({
            "better": f"{better['model']}, {better['pooling']}", "worse": f"{worse['model']}, {worse['pooling']}",
            "data": one["data"], "report": one["report"], "gap": better["score"] - worse["score"], "criteria": gaps,
            "clear": clear, "same_model": one["model"] == other["model"],
            "published": one["pooling"] == other["pooling"] == PUBLISHED,
            "alike": max(one["mean_cosine"], other["mean_cosine"]) > MOST_ALIKE,
        })  # fmt: skip
    return pairs


def share(pairs: list[dict], key: str) -> str:
    """Return how many pairs a criterion orders as the scores do."""
    right = sum(pair["criteria"][key] > 0 for pair in pairs)
    return f"{right} of {len(pairs)} ({100 * right / len(pairs):.0f}%)" if pairs else "-"


def criteria_table(pairs: list[dict], rows: list[dict]) -> str:
    """Return how well each criterion orders pairs of models."""
    published = [pair for pair in pairs if pair["published"]]
    others = [pair for pair in pairs if not pair["same_model"]]
    same = [pair for pair in pairs if pair["same_model"]]
    groups = [published, [p for p in others if p["gap"] < CLOSE], [p for p in others if p["gap"] >= CLOSE], same]
    lines = [f"| criterion | published models | different models, any pooling: below {CLOSE:.0f} points apart | "
             f"{CLOSE:.0f} points or more | poolings of one model | rank correlation |",
             "| --- | ---: | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for key in ("halves", "halves, adapted", *RETRIEVAL[1:], *WHOLE):
        correlations = []
        for name in dict.fromkeys(row["data"] for row in rows):
            own = [row for row in rows if row["data"] == name]
            values = [row[key] if key in WHOLE else -np.mean(row["adapted"] if key not in RETRIEVAL
                      else row["log_ranks"][key]) for row in own]  # fmt: skip
            correlations.append(spearmanr(values, [row["score"] for row in own]).statistic)
        cells = [share(group, key) for group in groups] + [f"{np.mean(correlations):+.2f}"]
        lines.append(f"| {key} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def clear_table(pairs: list[dict]) -> str:
    """Return how often a clear difference of halves is right."""
    lines = ["| pairs | halves right | clear difference, right | not clear, right |", "| --- | ---: | ---: | ---: |"]
    groups = {
        "published models": [p for p in pairs if p["published"]],
        "published, select data": [p for p in pairs if p["published"] and not p["report"]],
        "published, report data": [p for p in pairs if p["published"] and p["report"]],
        "published, CISI": [p for p in pairs if p["published"] and p["data"] == "CISI"],
        "different models, any pooling": [p for p in pairs if not p["same_model"]],
        "... mean cosine of both at most 0.7": [p for p in pairs if not p["same_model"] and not p["alike"]],
        "... mean cosine of one above 0.7": [p for p in pairs if not p["same_model"] and p["alike"]],
        "poolings of one model": [p for p in pairs if p["same_model"]],
    }
    for name, group in groups.items():
        clear = [pair for pair in group if pair["clear"]["halves"]]
        rest = [pair for pair in group if not pair["clear"]["halves"]]
        cells = [share(part, "halves") for part in (group, clear, rest)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def score_table(rows: list[dict]) -> str:
    """Return scores and criterion of the published models, in the order of the score."""
    lines = ["| data | model | score | rank of halves | with adapter | place by rank |",
             "| --- | --- | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for name in dict.fromkeys(row["data"] for row in rows):
        own = sorted((r for r in rows if r["data"] == name and r["pooling"] == PUBLISHED), key=lambda r: -r["score"])
        ranks = [float(np.exp(row["log_ranks"]["halves"].mean())) for row in own]
        for row, rank in zip(own, ranks):
            adapted = float(np.exp(row["adapted"].mean()))
            place = 1 + sum(other < rank for other in ranks)
            lines.append(f"| {name} | {row['model']} | {row['score']:.2f} | {rank:.2f} | {adapted:.2f} | {place} |")
    return "\n".join(lines)


def main() -> int:
    """Measure all models and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", nargs="+", required=True)
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    rows: list[dict] = []
    for name in args.model_name:
        encode = encoder_of(name, args.cache)
        for data in load_data(args.data_dir):
            rows += measure(name, encode, data)
            print(Path(name).name, data.name, {r["pooling"]: round(r["score"], 2) for r in rows[-5:]}, flush=True)
    add_consensus(rows)
    pairs = pairs_of(rows)
    for row in rows:
        row["halves"] = float(row["log_ranks"]["halves"].mean())
    arrays = ("log_ranks", "neighbors", "adapted")
    kept = [{key: value for key, value in row.items() if key not in arrays} for row in rows]
    published = [pair for pair in pairs if pair["published"]]
    write_json(args.output, {"machine": machine(), "rows": kept, "pairs of published models": published})
    print("", score_table(rows), clear_table(pairs), criteria_table(pairs, rows), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
