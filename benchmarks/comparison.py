r"""Does a criterion without labels order models as their scores do?

For each model and data set, measure criteria on unlabeled texts and the real score: nDCG@10 on CISI, accuracy
of the nearest neighbor on domains. A pair of models on the same data is right if the criterion and the score prefer the
same one.

    python benchmarks/comparison.py --model_name MODEL[:POOLER] ... --data_dir SHARED/data --cache FOLDER \
        --output results/comparison.json

Without POOLER, the pooling is mean. The cache is that of benchmarks/prediction.py, and a model folder without
config.json is read as the unpacked wordllama package. Criteria:

* halves: rank of a text's second half among others, for its first half (the criterion of `informin compare`)
* halves, adapted: the same with the default adapter, fitted on other texts
* crop, keywords, beginning: other queries made from a text; see benchmarks/queries.py
* dimensions; isotropy: minus the mean cosine between texts; effective rank of the embeddings
* neighbors as by words: overlap of the 10 nearest texts with those by TF-IDF
* neighbors as by the other models: overlap of the 10 nearest texts with those of the other models
"""

import sys
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.prediction import Data, Encode, arguments, cached, encoder_of, load_data
from benchmarks.queries import tests_of
from benchmarks.report import machine
from informin.adapters.halves import (
    MOST_AGREEING,
    HalvesScore,
    difference,
    mean_cosine,
    nearest_texts,
    shared_fraction,
    word_agreement,
)
from informin.adapters.prediction import MOST_ALIKE, choose
from informin.evaluation.geometry import effective_rank, unit
from informin.files import write_json

RETRIEVAL = ("halves", "crop", "keywords", "beginning")  # by log rank, lower is better
RANKED = ("halves", "halves, adapted", *RETRIEVAL[1:])
# Of whole texts: one number, higher is better.
WHOLE = ("dimensions", "isotropy", "effective rank", "neighbors as by words", "neighbors as by the other models")
CLOSE = 5.0  # points between two scores


def measure(label: str, encode: Encode, data: Data) -> dict:
    """Return the score and all criteria that need no other model."""
    vectors = encode(data.texts)
    order = np.random.default_rng(0).permutation(len(data.texts))[:MOST_AGREEING]
    tests, own = tests_of(data, encode, vectors), nearest_texts(vectors[order])
    ranks = {key: tests[key].log_ranks(None) for key in RETRIEVAL}
    ranks["halves, adapted"] = tests["halves"].log_ranks(choose([tests["halves"]]).adapter)
    model, _, pooling = label.partition(", ")
    return {
        "model": model, "pooling": pooling, "data": data.name, "report": data.report,
        "score": float(data.score(vectors, encode(data.scored)).mean()), "mean_cosine": mean_cosine(vectors),
        "ranks": ranks, "neighbors": own, "dimensions": vectors.shape[1], "isotropy": -mean_cosine(vectors),
        "effective rank": effective_rank(unit(vectors[order])),
        "neighbors as by words": word_agreement(data.texts, vectors),
    }  # fmt: skip


def add_consensus(rows: list[dict]) -> None:
    """Add the overlap of the neighbors with those of the other models on the same data."""
    for row in rows:
        others = [r for r in rows if r["data"] == row["data"] and r["model"] != row["model"]]
        overlaps = [shared_fraction(row["neighbors"], other["neighbors"]) for other in others]
        row["neighbors as by the other models"] = float(np.mean(overlaps)) if overlaps else 0.0


def pairs_of(rows: list[dict]) -> list[dict]:
    """Return all pairs of models on the same data, with the gap of each criterion: above 0 if it is right."""
    pairs = []
    for one, other in combinations(rows, 2):
        if one["data"] != other["data"] or one["score"] == other["score"]:
            continue
        better, worse = (one, other) if one["score"] > other["score"] else (other, one)
        gaps = {key: float(better[key] - worse[key]) for key in WHOLE}
        clear = {}
        for key in RANKED:
            gap = difference(*(HalvesScore(row["ranks"][key], None) for row in (better, worse)))
            gaps[key], clear[key] = -gap.mean, gap.clear
        pairs.append({
            "data": one["data"], "report": one["report"], "better": name_of(better), "worse": name_of(worse),
            "gap": better["score"] - worse["score"], "right": {key: gap > 0 for key, gap in gaps.items()},
            "clear": clear, "models": len({better["model"], worse["model"]}),
            "alike": max(one["mean_cosine"], other["mean_cosine"]) > MOST_ALIKE,
        })  # fmt: skip
    return pairs


def name_of(row: dict) -> str:
    return f"{row['model']}, {row['pooling']}"


def share(pairs: list[dict], key: str) -> str:
    """Return how many pairs a criterion orders as the scores do."""
    right = sum(pair["right"][key] for pair in pairs)
    return f"{right} of {len(pairs)} ({100 * right / len(pairs):.0f}%)" if pairs else "-"


def criteria_table(pairs: list[dict], rows: list[dict]) -> str:
    """Return how well each criterion orders pairs of different models, and all models of a data set."""
    pairs = [pair for pair in pairs if pair["models"] == 2]
    groups = [pairs, [p for p in pairs if p["gap"] < CLOSE], [p for p in pairs if not p["alike"]]]
    lines = [f"| criterion | pairs of models | scores less than {CLOSE:.0f} points apart | mean cosine of both at most "
             f"{MOST_ALIKE} | rank correlation, mean over data |",
             "| --- | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for key in (*RANKED, *WHOLE):
        correlations = []
        for name in dict.fromkeys(row["data"] for row in rows):
            own = [row for row in rows if row["data"] == name]
            values = [row[key] if key in WHOLE else -row["ranks"][key].mean() for row in own]
            correlations.append(spearmanr(values, [row["score"] for row in own]).statistic)
        lines.append(f"| {key} | {' | '.join(share(g, key) for g in groups)} | {np.mean(correlations):+.2f} |")
    return "\n".join(lines)


def clear_table(pairs: list[dict]) -> str:
    """Return how often halves are right, and how often if their difference is clear."""
    different = [pair for pair in pairs if pair["models"] == 2]
    groups = {
        "different models": different,
        "... on select data": [p for p in different if not p["report"]],
        "... on report data": [p for p in different if p["report"]],
        "... on CISI": [p for p in different if p["data"] == "CISI"],
        f"... mean cosine of both at most {MOST_ALIKE}": [p for p in different if not p["alike"]],
        f"... mean cosine of one above {MOST_ALIKE}": [p for p in different if p["alike"]],
        "poolings of one model": [p for p in pairs if p["models"] == 1],
    }
    lines = ["| pairs | right | right if clear | right if not clear |", "| --- | ---: | ---: | ---: |"]
    for name, group in groups.items():
        parts = [group, *([p for p in group if p["clear"]["halves"] == clear] for clear in (True, False))]
        lines.append(f"| {name} | {' | '.join(share(part, 'halves') for part in parts)} |")
    return "\n".join(lines)


def score_table(rows: list[dict]) -> str:
    """Return scores and ranks, best score first."""
    lines = ["| data | model | score | rank of halves | place by rank | with adapter | mean cosine |",
             "| --- | --- | ---: | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for name in dict.fromkeys(row["data"] for row in rows):
        own = sorted((row for row in rows if row["data"] == name), key=lambda row: -row["score"])
        ranks = [float(np.exp(row["ranks"]["halves"].mean())) for row in own]
        for row, rank in zip(own, ranks):
            adapted, place = float(np.exp(row["ranks"]["halves, adapted"].mean())), 1 + sum(r < rank for r in ranks)
            lines.append(f"| {name} | {name_of(row)} | {row['score']:.2f} | {rank:.2f} | {place} | {adapted:.2f} | "
                         f"{row['mean_cosine']:.2f} |")  # fmt: skip
    return "\n".join(lines)


def main() -> int:
    """Measure all models and print the tables."""
    args = arguments(__doc__)
    rows: list[dict] = []
    for name in args.model_name:
        model, _, pooler = name.partition(":")
        encode = cached(encoder_of(name), name, args.cache)
        for data in load_data(args.data_dir):
            rows.append(measure(f"{Path(model).name}, {pooler or 'mean'}", encode, data))
            print(name_of(rows[-1]), data.name, f"{rows[-1]['score']:.2f}", flush=True)
    add_consensus(rows)
    pairs = pairs_of(rows)
    for row in rows:
        row["halves"] = float(row["ranks"]["halves"].mean())
    kept = [{key: value for key, value in row.items() if key not in ("ranks", "neighbors")} for row in rows]
    write_json(args.output, {"machine": machine(), "rows": kept, "pairs": pairs})
    print("", score_table(rows), clear_table(pairs), criteria_table(pairs, rows), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
