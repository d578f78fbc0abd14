"""Example sentences with the neighbors that they lost and gained, for the report of a run."""

from collections.abc import Sequence

import numpy as np

from informin.evaluation.drift import NEIGHBORS, shared_neighbors
from informin.evaluation.embedding_cache import Encode
from informin.evaluation.geometry import nearest, unit

EXAMPLES, SHOWN = 20, 5
LONGEST = 240  # characters of a sentence
SEED = 42


def neighbor_examples(sentences: Sequence[str], old: Encode, new: Encode) -> list[dict]:
    """Return up to 20 sentences with neighbors that they lost and gained: the most changed ones, then random ones.

    Args:
        sentences: N distinct sentences, more than 10.
        old: Function from N sentences to embeddings (N, d) before the run.
        new: Function from N sentences to embeddings (N, e) after it.

    Returns:
        For each: `sentence`; `kept`, the number of its 10 nearest neighbors that it kept; `lost` and `gained`, up to 5
        neighbors, each with `sentence` and its cosines `old` and `new`.
    """
    x, y = (unit(encode(sentences)) for encode in (old, new))
    before, after = (nearest(z, NEIGHBORS)[0] for z in (x, y))  # (N, 10)
    kept = shared_neighbors(before, after)
    order, half = np.argsort(kept, kind="stable"), min(EXAMPLES, len(kept)) // 2
    rows = [*order[:half], *np.random.default_rng(SEED).permutation(order[half:])[:half]]

    def listed(row: int, neighbors: np.ndarray) -> list[dict]:
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
            "lost": listed(row, before[row][~np.isin(before[row], after[row])]),
            "gained": listed(row, after[row][~np.isin(after[row], before[row])]),
        }
        for row in rows
    ]


def shortened(text: str) -> str:
    """Return the first 240 characters of a text."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
