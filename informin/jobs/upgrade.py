"""Decide what to do with the index of an old embedding model when a new one is at hand, without labels."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from informin.adapters.bridge import AGAIN, BRIDGE, DECISIONS, FIT, STAY, Bridge, Expected, expect
from informin.jobs.given_vectors import check_rows, given_vectors
from informin.models.texts import as_texts

MEANING = {
    STAY: "keep the old model and its index",
    FIT: "keep the old model, and send its index and queries through its adapter",
    BRIDGE: "send the index through the old adapter, and queries of the new model through the bridge",
    AGAIN: "embed all texts with the new model, and fit its adapter",
}
USE = """index.add(bridge.index(old_vectors).astype("float32"))  # FAISS, IndexFlatIP
client.query_points(name, query=bridge.transform(query[None])[0].tolist())  # Qdrant"""


@dataclass(repr=False)
class UpgradeResult:
    """The decision, and the bridge.

    Attributes:
        bridge: Maps queries of the new model to the adapted index of the old one.
        expected: What each decision is expected to give.
    """

    bridge: Bridge
    expected: Expected

    @property
    def decision(self) -> str:
        """`stay`, `fit`, `bridge` or `again`."""
        return self.expected.best

    def __repr__(self) -> str:
        agreement = self.expected.agreement
        lines = [f"{name}: {agreement[name]:.3f}, {MEANING[name]}" for name in DECISIONS]
        kept = self.expected.best_with_old_index
        return "\n".join([
            f"Agreement with word search on {self.expected.texts:,} held-out texts:",
            *(f"  {line}" for line in lines),
            f"Decision: {self.decision}; without embedding again: {kept}.",
            *([USE] if BRIDGE in (self.decision, kept) else []),
        ])  # fmt: skip


def upgrade(
    old: str | Path | ArrayLike, new: str | Path | ArrayLike, texts: Iterable[str], *, seed: int = 0
) -> UpgradeResult:
    """Compare staying with an old model, fitting its index, a bridge to a new model, and embedding again.

    Args:
        old: (N, d_old) embeddings of the texts by the old model, or a file of them (.npy, .parquet or .safetensors).
        new: (N, d_new) embeddings of the texts by the new model, or a file.
        texts: N texts: a list, or another iterable of strings. A sample of the texts in the index is enough.
        seed: Seed of the held-out texts.

    Returns:
        The decision, what each alternative is expected to give, and the bridge, fitted on all texts.

    Raises:
        UsageError: The texts or the embeddings cannot be used, or there are fewer than 100 texts.
    """
    found = as_texts(texts, "texts")
    sides = []
    for given in (old, new):
        vectors, name = given_vectors(given)
        check_rows(name, vectors, found)
        sides.append(np.asarray(vectors))
    return UpgradeResult(Bridge.fit(sides[1], sides[0]), expect(found, sides[1], sides[0], seed))
