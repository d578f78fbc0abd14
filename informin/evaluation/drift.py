"""Measure how training changed an encoder, without labels, on a sample of sentences from the domain.

A drift record, such as the one in training.json, has `sentences`, the number of sentences; `old` and `new`, each with
all of `MEASURES` (None if undefined); and `warnings`, a list of messages. The report of a run also shows examples.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from informin.errors import UndefinedScoreError, UsageError, counted
from informin.evaluation.encode import (
    Encode,
    alignment,
    effective_rank,
    embed_once,
    hubness,
    rotated_cosine,
    uniformity,
    unit,
)
from informin.evaluation.measures import Measure
from informin.evaluation.neighbors import nearest
from informin.evaluation.pairs import GradedPairs, score_pairs
from informin.evaluation.senteval import load_stsb_dev
from informin.evaluation.table import Row, Table
from informin.options import with_home
from informin.texts import is_blank

COMPARED_NEIGHBORS = 10
FEWEST = 30  # sentences; with fewer, more than a third of the neighbors are kept by chance
SAMPLED_TEXTS = 2000  # enough to measure kept neighbors to half a percentage point, in 64 MB
SEED = 42  # of samples
NOT_SCORED = "not scored"
CHANGED = "changed neighborhoods"  # the beginning of a warning
FORGOT = "reduced general ability"  # the beginning of another warning
# Thresholds of warnings, from runs on StackOverflow titles and Banking77 with all-MiniLM-L6-v2 and a weak encoder.
# TORN, new / old neighbor distance: 0.91 to 1.10 if 1-NN accuracy stayed or rose, 1.20 to 1.90 if it fell by 6 to 14
# points. FEW_KEPT, %: 89 to 93 if accuracy stayed, 54 to 73 if it fell, but also 54 for a weak encoder that gained 4
# points.
TORN = 1.15
FEW_KEPT = 60
RANK_LEFT = 0.5  # new / old effective rank: 0.97 to 1.10, and 0.01 after a collapse to a uniformity of -0.69
ALL_ALIKE = -0.2  # uniformity, for a mean cosine above 0.95; pretrained encoders with [CLS] pooling have -0.3 to -1.7
FORGOTTEN = 2.0  # points of STS-B dev; seeds differ by a few tenths
MORE_HUBS = 1.0  # rise of the skewness; it changed by -4.6 to +0.04 in these runs
MEASURES = {
    "neighbors_kept": Measure(f"{COMPARED_NEIGHBORS} nearest neighbors kept, %", 1),
    "rotated_cosine": Measure("cosine to the old embedding, rotated"),
    "alignment": Measure("alignment of old neighbors", 3, lower_is_better=True),
    "neighbor_distance": Measure("distance of old neighbors, % of all pairs", 1, lower_is_better=True),
    "uniformity": Measure("uniformity", 3, lower_is_better=True),
    "effective_rank": Measure("effective rank", 0),
    "hubness": Measure("hubness", lower_is_better=True),
    "stsb_dev": Measure("STS-B dev"),
}
# Those that need no background, and their meaning.
MAIN = {
    "neighbors_kept": "how many of the 10 nearest texts of a text are still among its 10 nearest",
    "rotated_cosine": "how similar the embeddings are to the old ones, after the best rotation; 1 if nothing changed",
    "neighbor_distance": "squared distance between texts that were each other's nearest, compared with all pairs",
    "stsb_dev": "agreement with people on how similar two general English sentences are; higher is better",
}
EXAMPLES = 20
SHOWN = 5
LONGEST_SENTENCE = 240  # characters of a sentence


@dataclass(frozen=True)
class Drift:
    """Differences between two encoders on N distinct sentences.

    Attributes:
        sentences: The N sentences.
        kept: (N,) number of the 10 nearest neighbors that a sentence kept.
        cosine: (N,) cosine to the old embedding; see `rotated_cosine`.
        old: All of `MEASURES` for the old encoder; None if undefined or not measured.
        new: The same for the new encoder.
    """

    sentences: list[str]
    kept: np.ndarray
    cosine: np.ndarray
    old: dict[str, float | None]
    new: dict[str, float | None]

    def record(self) -> dict:
        """Return the drift record; see the module docstring."""
        number = len(self.sentences)
        return {"sentences": number, "old": self.old, "new": self.new, "warnings": drift_warnings(self.old, self.new)}


def measure_drift(old: Encode, new: Encode, sentences: Sequence[str], pairs: GradedPairs | None = None) -> Drift:
    """Compare the embeddings of the same sentences by two encoders.

    For `alignment`, sentences that are each other's nearest neighbor by the old encoder count as positive pairs,
    because there are no labels. Since they are selected by the old encoder, the alignment rises a little by chance.

    Args:
        old: Function from M sentences to embeddings (M, d), called once.
        new: Function from M sentences to embeddings (M, e), called once.
        sentences: Sentences of the domain; duplicates count once.
        pairs: STS-B dev, which shows a loss of general ability; None to skip `stsb_dev`.

    Raises:
        UsageError: There are fewer than 30 distinct sentences.
        UndefinedScoreError: An embedding is not finite.
    """
    texts = list(dict.fromkeys(sentences))
    if len(texts) < FEWEST:
        raise UsageError(
            f"Found {counted(len(texts), 'distinct sentence')}", needed=f"{FEWEST} or more to measure drift"
        )
    wanted = texts + (pairs.texts() if pairs else [])
    one, other = (embed_once(encode, wanted) for encode in (old, new))
    x = one(texts)  # (N, d), (N, e)
    y = other(texts)
    before, after = (nearest(unit(z), COMPARED_NEIGHBORS)[0] for z in (x, y))  # (N, 10)
    kept = shared_neighbors(before, after)
    cosine = rotated_cosine(x, y)
    positives = mutual_pairs(before)
    changes = {"neighbors_kept": 100 * float(kept.mean()) / COMPARED_NEIGHBORS, "rotated_cosine": float(cosine.mean())}
    in_old = {"neighbors_kept": 100.0, "rotated_cosine": 1.0} | layout(x, before, positives)
    in_new = changes | layout(y, after, positives)
    in_old["stsb_dev"], in_new["stsb_dev"] = (spearman(embed, pairs) if pairs else None for embed in (one, other))
    return Drift(texts, kept, cosine, in_old, in_new)


def shared_neighbors(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return the number (N,) of neighbors that are in both rows of two lists of neighbors (N, k)."""
    return (before[:, :, None] == after[:, None, :]).any(2).sum(1)


def layout(x: np.ndarray, neighbors: np.ndarray, positives: np.ndarray) -> dict[str, float | None]:
    """Return those of `MEASURES` that depend on a single encoder.

    Args:
        x: Embeddings (N, d).
        neighbors: Indices (N, 10), from `nearest`.
        positives: (M, 2), rows that count as positive pairs; without any, `alignment` is None.
    """
    distance = alignment(*x[positives].swapaxes(0, 1)) if len(positives) else None
    mean = mean_squared_distance(x)
    return {
        "alignment": distance,
        "neighbor_distance": 100 * distance / mean if distance is not None and mean > 0 else None,
        "uniformity": uniformity(x),
        "effective_rank": effective_rank(x),
        "hubness": hubness(neighbors),
    }


def mean_squared_distance(x: np.ndarray) -> float:
    """Return the mean squared distance over all pairs of different rows (N, d), scaled to unit length or zero.

    It is 2 (mean |u|^2 - |mean u|^2) N / (N - 1), with u the scaled rows.
    """
    u = unit(x)
    return 2 * float((u**2).sum(1).mean() - (u.mean(0) ** 2).sum()) * len(u) / (len(u) - 1)


def mutual_pairs(neighbors: np.ndarray) -> np.ndarray:
    """Return the pairs (M, 2) of rows that are each other's nearest neighbor, from neighbors (N, k), nearest first."""
    partner = neighbors[:, 0]
    rows = np.arange(len(neighbors))
    return np.stack([rows, partner], axis=1)[(partner[partner] == rows) & (rows < partner)]


def spearman(encode: Encode, pairs: GradedPairs) -> float | None:
    """Return Spearman x 100 of graded pairs; None if all cosines are equal."""
    try:
        return score_pairs(encode, pairs)["spearman"]
    except UndefinedScoreError:
        return None


def draw(sentences: Sequence[str], count: int = SAMPLED_TEXTS, seed: int = SEED) -> list[str]:
    """Return up to `count` distinct random sentences that are not blank, with single spaces between words.

    Reads at most 5 `count` sentences, so the result can be shorter if most are duplicates.
    """
    return distinct((sentences[row] for row in rows_to_read(len(sentences), count, seed)), count)


def rows_to_read(number: int, count: int = SAMPLED_TEXTS, seed: int = SEED) -> list[int]:
    """Return the rows of N sentences that `draw` reads."""
    return np.random.default_rng(seed).permutation(number)[: 5 * count].tolist()


def distinct(sentences: Iterable[str], count: int = SAMPLED_TEXTS) -> list[str]:
    """Return the first `count` distinct sentences that are not blank, with single spaces between words."""
    return list(dict.fromkeys(" ".join(text.split()) for text in sentences if not is_blank(text)))[:count]


def stsb_dev(senteval_dir: str | None) -> GradedPairs | None:
    """Load STS-B dev from SentEval's `data/downstream` or $SENTEVAL_DATA; None if neither is given. Never downloads.

    Raises:
        UsageError: The file is missing or damaged.
    """
    named = senteval_dir or os.environ.get("SENTEVAL_DATA")
    return load_stsb_dev(with_home(named)) if named else None


def drift_table(records: Mapping[str, dict], old: str, measures: Iterable[str] = MEASURES) -> Table:
    """Return a table of drift records with the same old encoder: one row per measure, one column per encoder.

    Args:
        records: Records by the name of the new encoder.
        old: Name of the old encoder.
        measures: Names in `MEASURES`.
    """
    first = next(iter(records.values()))
    ends = {old: first["old"]} | {name: record["new"] for name, record in records.items()}
    rows = []
    for key in measures:
        measure = MEASURES[key]
        values = {name: NOT_SCORED if end.get(key) is None else end[key] for name, end in ends.items()}
        rows.append(Row(measure.title, values, digits=measure.digits))
    return Table(f"Drift on {counted(first['sentences'], 'sentence')}", [old, *records], rows)


def drift_warnings(old: Mapping[str, Any], new: Mapping[str, Any], trained: bool = True) -> list[str]:
    """Return warnings about harmful changes, each a phrase that continues "Training ..." or "The adapter ...".

    Args:
        old: Values of all `MEASURES`, as in a record.
        new: The same for the new encoder.
        trained: Whether the new encoder was trained. An adapter that whitens moves neighbors apart even where it helps.
    """
    warnings = []
    less = "Train for fewer steps, or lower `learning_rate`." if trained else "Fit with the task clustering."

    def change(key: str) -> str:
        before, after = (MEASURES[key].shown(end[key]) for end in (old, new))
        return f"{after} (before: {before})"

    shrunk = new["effective_rank"] < RANK_LEFT * old["effective_rank"]
    if shrunk or new["uniformity"] > max(ALL_ALIKE, old["uniformity"]):
        changes = f"effective rank {change('effective_rank')}, uniformity {change('uniformity')}; 0 if all are equal"
        warnings.append(f"collapsed the embeddings: {changes}. {less}")
    near = new["neighbor_distance"]
    before = old["neighbor_distance"]
    if trained and near is not None and before is not None and near > TORN * before:
        warnings.append(
            f"moved neighbors apart: {change('neighbor_distance')}% of the mean squared distance over all pairs. "
            "In-batch negatives of one domain do this to an encoder that was already good. Score both encoders on "
            "labeled sentences before you replace the old one."
        )
    kept = new["neighbors_kept"]
    if kept < FEW_KEPT:
        warnings.append(
            f"{CHANGED}: sentences kept {kept:.1f}% of their {COMPARED_NEIGHBORS} nearest neighbors. "
            "For a weak encoder this can be an improvement, for a good one it usually is not."
        )
    best = old["stsb_dev"]
    canary = new["stsb_dev"]
    if best is not None and (canary is None or canary < best - FORGOTTEN):
        now = "has no score" if canary is None else f"fell to {canary:.2f}"
        warnings.append(f"{FORGOT}: STS-B dev {now} (before: {best:.2f}). {less}")
    if new["hubness"] > old["hubness"] + MORE_HUBS:
        rise = f"the skewness of neighbor counts rose to {change('hubness')}"
        warnings.append(f"created hubs: {rise}, so a few sentences appear in the results of most searches.")
    return warnings


def neighbor_examples(sentences: Sequence[str], old: Encode, new: Encode) -> list[dict]:
    """Return up to 20 sentences with neighbors that they lost and gained: the most changed ones, then random ones.

    Args:
        sentences: N distinct sentences, more than 10.
        old: Function that returns the embeddings (N, d) of N sentences before the run.
        new: Function that returns the embeddings (N, e) of N sentences after the run.

    Returns:
        For each: `sentence`; `kept`, the number of its 10 nearest neighbors that it kept; `lost` and `gained`, up to 5
        neighbors, each with `sentence` and its cosines `old` and `new`.
    """
    x, y = (unit(encode(sentences)) for encode in (old, new))
    before, after = (nearest(z, COMPARED_NEIGHBORS)[0] for z in (x, y))  # (N, 10)
    kept = shared_neighbors(before, after)
    order = np.argsort(kept, kind="stable")
    half = min(EXAMPLES, len(kept)) // 2
    others = np.random.default_rng(SEED).permutation(order[half:])
    rows = np.append(order[:half], others[:half])

    def listed(row: int, neighbors: list[int]) -> list[dict]:
        return [
            {
                "sentence": shortened(sentences[i]),
                "old": round(float(x[row] @ x[i]), 3),
                "new": round(float(y[row] @ y[i]), 3),
            }
            for i in neighbors[:SHOWN]
        ]

    return [
        {
            "sentence": shortened(sentences[row]),
            "kept": int(kept[row]),
            "lost": listed(row, before[row][~np.isin(before[row], after[row])].tolist()),
            "gained": listed(row, after[row][~np.isin(after[row], before[row])].tolist()),
        }
        for row in rows.tolist()
    ]


def shortened(text: str) -> str:
    """Return the first 240 characters of a text."""
    return text if len(text) <= LONGEST_SENTENCE else f"{text[: LONGEST_SENTENCE - 1]}…"
