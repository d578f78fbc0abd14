"""What a report shows of the embeddings before and after a run: neighbors of example sentences, hubs, and a map.

A snapshot has

sentences   number of sentences that were compared
examples    20 sentences, half of them those with the most changed neighbors: sentence; most_changed; kept, number of
            its 10 nearest neighbors that it kept; lost and gained, up to 5 neighbors with their cosines old and new
hubs        old and new, number of sentences by how many others have them as a neighbor (a list from 0); top, the
            sentences that most others have as a neighbor now, with their counts old and new
map         sentences, the examples first; old and new, a point for each; group, its cluster before the run
"""

from collections.abc import Sequence

import numpy as np
from scipy.linalg import orthogonal_procrustes
from sklearn.cluster import KMeans
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from informin.evaluation.drift import NEIGHBORS
from informin.evaluation.embedding_cache import Encode
from informin.evaluation.geometry import nearest, occurrences, unit
from informin.schema import FLAG, SCORE, TEXT, Each, Keys, Kind, integer, list_of

EXAMPLES, SHOWN, HUBS = 20, 5, 5
MOST = 100_000  # sentences in a valid snapshot; ours have up to 2,000
MAPPED = 500  # sentences; t-SNE of 500 takes about two seconds on a CPU
GROUPS = 6  # clusters, told apart by color and shape
PERPLEXITY = 30
MOVES = 500  # steps from the first map to the second
LONGEST = 240  # characters of a sentence
SEED = 42

_POINT: Kind = (
    lambda value: isinstance(value, list) and len(value) == 2 and all(map(SCORE[0], value)),
    "two numbers between -10^15 and 10^15",
)
_NEIGHBORS = Each(Keys({"sentence": TEXT, "old": SCORE, "new": SCORE}))
SNAPSHOT = Keys(
    {
        "sentences": integer(1),
        "examples": Each(
            Keys(
                {
                    "sentence": TEXT,
                    "most_changed": FLAG,
                    "kept": integer(0),
                    "lost": _NEIGHBORS,
                    "gained": _NEIGHBORS,
                }
            )
        ),
        "hubs": Keys(
            {
                "old": list_of(integer(0)),
                "new": list_of(integer(0)),
                "top": Each(Keys({"sentence": TEXT, "old": integer(0), "new": integer(0)})),
            }
        ),
        "map": Keys(
            {"sentences": list_of(TEXT), "old": list_of(_POINT), "new": list_of(_POINT), "group": list_of(integer(0))}
        ),
    },
    null=True,
)


def inconsistency(snapshot: dict) -> str | None:
    """Return which numbers of a snapshot that matches `SNAPSHOT` contradict each other, or None."""
    drawn, hubs, number = snapshot["map"], snapshot["hubs"], snapshot["sentences"]
    lengths = {len(drawn[name]) for name in drawn}
    if len(lengths) > 1 or not max(1, len(snapshot["examples"])) <= min(lengths):
        return "snapshot.map has no points, fewer points than examples, or lists of different lengths"
    if any(sum(hubs[name]) != number or number > MOST for name in ("old", "new")):
        return f"snapshot.hubs has other sums than snapshot.sentences, which is {number:,}"
    return None


def take_snapshot(sentences: Sequence[str], old: Encode, new: Encode) -> dict:
    """Compare the embeddings of N distinct sentences, at least 30; see the module docstring.

    Args:
        old: Function from N sentences to embeddings (N, d) before the run.
        new: Function from N sentences to embeddings (N, e) after it.
    """
    x, y = (unit(encode(sentences)) for encode in (old, new))
    before, after = (nearest(z, NEIGHBORS)[0] for z in (x, y))  # (N, 10)
    kept = np.array([len(set(a) & set(b)) for a, b in zip(before.tolist(), after.tolist())])
    order, count = np.argsort(kept, kind="stable").tolist(), min(EXAMPLES, len(kept))
    changed = order[: count // 2]  # those that kept the fewest neighbors, then random ones
    rows = changed + np.random.default_rng(SEED).permutation(order[count // 2 :])[: count - count // 2].tolist()
    rest = np.setdiff1d(np.arange(len(sentences)), rows)
    mapped = [*rows, *np.random.default_rng(SEED).permutation(rest)[: MAPPED - len(rows)].tolist()]
    points, moved = layouts(x[mapped], y[mapped])
    was, now = occurrences(before), occurrences(after)
    top = np.argsort(-now, kind="stable")[:HUBS].tolist()
    with threadpool_limits(1):  # the order of sums over threads varies
        groups = KMeans(GROUPS, n_init=3, random_state=SEED).fit_predict(x[mapped])
    return {
        "sentences": len(sentences),
        "examples": [
            {"most_changed": row in changed} | _example(row, sentences, x, y, before[row], after[row]) for row in rows
        ],
        "hubs": {
            "old": np.bincount(was).tolist(),
            "new": np.bincount(now).tolist(),
            "top": [{"sentence": shortened(sentences[i]), "old": int(was[i]), "new": int(now[i])} for i in top],
        },
        "map": {
            "sentences": [shortened(sentences[row]) for row in mapped],
            "old": np.round(points.astype(float), 2).tolist(),
            "new": np.round(moved.astype(float), 2).tolist(),
            "group": groups.tolist(),
        },
    }


def layouts(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return 2-D points (N, 2) of unit vectors (N, d) and (N, e) of the same N sentences, by t-SNE.

    The second map starts from the first, without early exaggeration, so that a sentence stays in place unless its
    neighbors changed. Distances are meaningful only between neighbors. Size and rotation of a map mean nothing, so
    those of the second are fitted to the first (orthogonal Procrustes).
    """
    options = {"perplexity": min(PERPLEXITY, (len(x) - 1) / 3), "random_state": SEED}
    with threadpool_limits(1):
        first = TSNE(init="pca", **options).fit_transform(x.astype(np.float32))
        moved = TSNE(init=first, early_exaggeration=1, max_iter=MOVES, **options).fit_transform(y.astype(np.float32))
    center = first.mean(0)
    moved = (moved - moved.mean(0)) * (first.std() / (moved.std() or 1))
    return first, moved @ orthogonal_procrustes(moved, first - center)[0] + center


def _example(row: int, texts: Sequence[str], x: np.ndarray, y: np.ndarray, old: np.ndarray, new: np.ndarray) -> dict:
    """Return the lost and gained neighbors of a row, nearest first, with their cosines before and after."""

    def listed(neighbors: Sequence[int]) -> list[dict]:
        return [
            {
                "sentence": shortened(texts[i]),
                "old": round(float(x[row] @ x[i]), 3),
                "new": round(float(y[row] @ y[i]), 3),
            }
            for i in neighbors[:SHOWN]
        ]

    before, after = old.tolist(), new.tolist()
    return {
        "sentence": shortened(texts[row]),
        "kept": len(set(before) & set(after)),
        "lost": listed([i for i in before if i not in after]),
        "gained": listed([i for i in after if i not in before]),
    }


def shortened(text: str) -> str:
    """Return the first 240 characters of a text."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
