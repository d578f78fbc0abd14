"""What training did to an encoder, measured without labels: before and after, on a sample of the domain's sentences.

A record of it, in training.json for instance, has `sentences`, their number; `old` and `new`, each with every one of
`MEASURES`, None where it could not be measured; and `warnings`, in words.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from informin.errors import UndefinedScoreError, UsageError, counted
from informin.evaluation.embedding_cache import Encode, embed_once
from informin.evaluation.geometry import (
    alignment,
    effective_rank,
    hubness,
    nearest,
    occurrences,
    rotated_cosine,
    uniformity,
    unit,
)
from informin.evaluation.measures import Measure
from informin.evaluation.pairs import GradedPairs, score_pairs
from informin.evaluation.senteval import load_stsb_dev
from informin.evaluation.table import Row, Table
from informin.textfiles import without_blanks

NEIGHBORS = 10
FEWEST = 30  # sentences: with fewer, more than a third of the neighbors are kept by chance
SAMPLE, SEED = 2000, 42  # that many give each share of neighbors to half a point, and need 64 MB
NOT_SCORED = "not scored"
# Where warnings begin: measured on StackOverflow titles and Banking77, from all-MiniLM-L6-v2 and a weak encoder. TORN,
# times the old distance: 0.91 to 1.10 where 1-NN accuracy stayed or rose, 1.20 to 1.90 where it fell by 6 to 14 points.
# FEW_KEPT, %: 89 to 93 where it stayed, 54 to 73 where it fell, but 54 too where a weak encoder gained 4 points.
TORN = 1.15
FEW_KEPT = 60
RANK_LEFT = 0.5  # of the old effective rank: 0.97 to 1.10, and 0.01 of the broken one, which had a uniformity of -0.69
ALL_ALIKE = -0.2  # uniformity: a mean cosine above 0.95; pretrained encoders at [CLS] begin at -0.3 to -1.7
FORGOTTEN = 2.0  # points: seeds differ by some tenths
MORE_HUBS = 1.0  # of skewness: -4.6 to +0.04 in all of these runs
MEASURES = {
    "neighbors_kept": Measure(f"{NEIGHBORS} nearest neighbors kept, %", 1),
    "rotated_cosine": Measure("cosine to the old embedding, rotated"),
    "alignment": Measure("alignment of old neighbors", 3, lower_is_better=True),
    "neighbor_distance": Measure("distance of old neighbors, % of all pairs", 1, lower_is_better=True),
    "uniformity": Measure("uniformity", 3, lower_is_better=True),
    "effective_rank": Measure("effective rank", 0),
    "hubness": Measure("hubness", lower_is_better=True),
    "stsb_dev": Measure("STS-B dev"),
}


@dataclass(frozen=True)
class Drift:
    """What moved, and how far.

    Attributes:
        sentences: N, distinct.
        kept: (N,) how many of a sentence's 10 nearest neighbors it kept.
        cosine: (N,) to the old embedding; see `rotated_cosine`.
        old_occurrences, new_occurrences: (N,) of how many sentences it is a neighbor.
        old, new: every one of `MEASURES`; None where it was not, or could not be, measured.
    """

    sentences: list[str]
    kept: np.ndarray
    cosine: np.ndarray
    old_occurrences: np.ndarray
    new_occurrences: np.ndarray
    old: dict[str, float | None]
    new: dict[str, float | None]

    def record(self) -> dict:
        """As it is kept; see the module."""
        number = len(self.sentences)
        return {"sentences": number, "old": self.old, "new": self.new, "warnings": warnings(self.old, self.new)}


def measure_drift(old: Encode, new: Encode, sentences: Sequence[str], pairs: GradedPairs | None = None) -> Drift:
    """Compares two encoders by how they lay out the same sentences.

    `alignment` is of the pairs of sentences that are each other's nearest neighbor by the old encoder, which stand for
    positive pairs where there are no labels. They were chosen for being near in the old space, so that some of a rise
    is chance.

    Args:
        old, new: from M sentences to (M, d) and (M, e); each is called once.
        sentences: of the domain; copies count once.
        pairs: STS-B dev, the canary of general ability; None leaves `stsb_dev` out.

    Raises:
        UsageError: fewer than 30 distinct sentences.
        UndefinedScoreError: an embedding is not finite.
    """
    texts = list(dict.fromkeys(sentences))
    if len(texts) < FEWEST:
        raise UsageError(
            f"Found {counted(len(texts), 'distinct sentence')}",
            needed=f"{FEWEST} or more to measure drift",
            fix="Use more sentences.",
        )
    one, other = (embed_once(encode, [*texts, *(pairs.texts() if pairs else [])]) for encode in (old, new))
    x, y = one(texts), other(texts)  # (N, d), (N, e)
    before, after = (nearest(unit(z), NEIGHBORS)[0] for z in (x, y))  # (N, 10)
    kept = np.array([len(set(few) & set(few_now)) for few, few_now in zip(before.tolist(), after.tolist())])
    cosine, alike = rotated_cosine(x, y), mutual_pairs(x)
    moved = {"neighbors_kept": 100 * float(kept.mean()) / NEIGHBORS, "rotated_cosine": float(cosine.mean())}
    ends = []
    for embedding, z, neighbors in ((one, x, before), (other, y, after)):
        able = spearman(embedding, pairs) if pairs else None
        ends.append(layout(z, neighbors, alike) | {"stsb_dev": able})
    still = {"neighbors_kept": 100.0, "rotated_cosine": 1.0}
    return Drift(texts, kept, cosine, occurrences(before), occurrences(after), still | ends[0], moved | ends[1])


def layout(x: np.ndarray, neighbors: np.ndarray, alike: np.ndarray) -> dict[str, float | None]:
    """Those of `MEASURES` that are of one encoder alone.

    Args:
        x: (N, d) embeddings.
        neighbors: (N, 10), from `nearest`.
        alike: (M, 2), the rows that count as positive pairs; `alignment` is None without any.
    """
    near = alignment(*x[alike].swapaxes(0, 1)) if len(alike) else None
    # The mean over pairs of different unit vectors.
    far = 2 * (1 - float((unit(x).mean(0) ** 2).sum())) * len(x) / (len(x) - 1)
    return {
        "alignment": near,
        "neighbor_distance": 100 * near / far if near is not None and far > 0 else None,
        "uniformity": uniformity(x),
        "effective_rank": effective_rank(x),
        "hubness": hubness(neighbors),
    }


def mutual_pairs(x: np.ndarray) -> np.ndarray:
    """Return the pairs (M, 2) of rows that are each other's nearest neighbor by cosine, of (N, d) embeddings."""
    import torch  # here, because model cards only need the table

    from informin.guide.neighbors import mutual_neighbors

    partner = mutual_neighbors(torch.from_numpy(nearest(unit(x), 1)[0]))[:, 0].numpy()
    rows = np.arange(len(x))
    return np.stack([rows, partner], axis=1)[rows < partner]


def spearman(encode: Encode, pairs: GradedPairs) -> float | None:
    """Spearman x 100 of graded pairs; None where all cosines are alike."""
    try:
        return score_pairs(encode, pairs)["spearman"]
    except UndefinedScoreError:
        return None


def draw(sentences: Sequence[str], count: int = SAMPLE, seed: int = SEED) -> list[str]:
    """At most so many distinct sentences, drawn at random, with single spaces and without blank ones.

    Where most are copies there may be fewer: no more than five times as many are read.
    """
    rows = np.random.default_rng(seed).permutation(len(sentences))[: 5 * count]
    texts = (" ".join(text.split()) for text in without_blanks(sentences[row] for row in rows.tolist()))
    return list(dict.fromkeys(texts))[:count]


def stsb_dev(senteval_dir: str | None) -> GradedPairs | None:
    """STS-B dev from a folder as `load_task` takes it, else from $SENTEVAL_DATA; None with neither: nothing is fetched.

    Raises UsageError: it is not there.
    """
    named = senteval_dir or os.environ.get("SENTEVAL_DATA")
    return load_stsb_dev(named) if named else None


def drift_table(records: Mapping[str, dict], old: str) -> Table:
    """The measures of one or more records with the same old encoder: a line a measure, a column an encoder.

    Args:
        records: by the name of the new encoder.
        old: the name of the old one.
    """
    first = next(iter(records.values()))
    ends = {old: first["old"]} | {name: record["new"] for name, record in records.items()}
    rows = []
    for key, measure in MEASURES.items():
        values = {name: NOT_SCORED if end.get(key) is None else end[key] for name, end in ends.items()}
        rows.append(Row(measure.title, values, digits=measure.digits))
    return Table(f"Drift on {counted(first['sentences'], 'sentence')}", [old, *records], rows)


def warnings(old: Mapping[str, float | None], new: Mapping[str, float | None]) -> list[str]:
    """What should not go unnoticed, each in words that go on from "training": "moved sentences far: ...".

    Args:
        old, new: every one of `MEASURES`, as in a record.
    """
    told = []
    rank, spread = new["effective_rank"], new["uniformity"]
    if rank < RANK_LEFT * old["effective_rank"] or (spread > ALL_ALIKE and spread > old["uniformity"]):
        told.append(
            f"collapsed the embeddings: their effective rank is {rank:.0f} (before: {old['effective_rank']:.0f}), and "
            f"their uniformity {spread:.3f} ({old['uniformity']:.3f}; 0 if all are alike). Lower `learning_rate`."
        )
    near, before = new["neighbor_distance"], old["neighbor_distance"]
    if near is not None and before is not None and near > TORN * before:
        told.append(
            f"tore neighbors apart: pairs of sentences that were each other's nearest are now at {near:.1f}% of the "
            f"squared distance of all pairs (before: {before:.1f}%). Contrast with other sentences of the same kind "
            "does this to an encoder that was good already. Score both encoders on labeled sentences before this one "
            "takes the old one's place."
        )
    kept = new["neighbors_kept"]
    if kept < FEW_KEPT:
        told.append(
            f"moved sentences far: they kept {kept:.1f}% of their {NEIGHBORS} nearest neighbors. Of a weak encoder "
            "that may be progress; a good one has lost what it was good at."
        )
    best, canary = old["stsb_dev"], new["stsb_dev"]
    if best is not None and (canary is None or canary < best - FORGOTTEN):
        now = "has no score" if canary is None else f"fell to {canary:.2f}"
        told.append(f"made the encoder forget: STS-B dev {now} (before: {best:.2f}). Train less, or more slowly.")
    if new["hubness"] > old["hubness"] + MORE_HUBS:
        told.append(
            f"made hubs: the skewness of how often a sentence is a neighbor rose to {new['hubness']:.2f} (before: "
            f"{old['hubness']:.2f}), so that a few sentences are found whatever is searched for."
        )
    return told
