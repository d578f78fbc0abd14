"""Decide what to do with the index of an old embedding model when a new one is at hand, without labels."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from typing_extensions import Unpack

from informin.adapters.bridge import AGAIN, BRIDGE, DECISIONS, FIT, STAY, Bridge, Expected, check_texts, expect
from informin.jobs.given_vectors import check_rows, given_vectors, is_vector_file
from informin.jobs.models import ModelKeywords, ModelOptions, embed_in_memory, text_encoder
from informin.models.model import Model
from informin.models.open_model import is_sentence_transformer
from informin.models.texts import as_texts
from informin.program import require_seed

MEANING = {
    STAY: "keep the old model and its index",
    FIT: "keep the old model, and send its index and queries through its adapter (informin fit)",
    BRIDGE: "send the index through the old adapter, and queries of the new model through the bridge",
    AGAIN: "embed all texts with the new model, and fit its adapter (informin embed, informin fit)",
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

    @property
    def bridge_is_best(self) -> bool:
        """Whether the bridge is the decision, or would be if the texts could not be embedded again."""
        return BRIDGE in (self.decision, self.expected.best_with_old_index)

    def __repr__(self) -> str:
        agreement = self.expected.agreement
        return "\n".join([
            f"Agreement with word search on {self.expected.texts:,} held-out texts:",
            *(f"  {name:6} {agreement[name]:.3f}  {MEANING[name]}" for name in DECISIONS),
            f"Decision: {self.decision}. Without embedding again: {self.expected.best_with_old_index}.",
            *([USE] if self.bridge_is_best else []),
        ])  # fmt: skip


def upgrade(
    old: str | Path | Model | ArrayLike,
    new: str | Path | Model | ArrayLike,
    texts: Iterable[str],
    *,
    seed: int = 0,
    **options: Unpack[ModelKeywords],
) -> UpgradeResult:
    """Compare staying with an old model, fitting its index, a bridge to a new model, and embedding again.

    Args:
        old: The old model: Hub id, folder, SentenceTransformer, or a model from `load_model`. Or its (N, d_old)
            embeddings of the texts, or a file of them (.npy, .parquet or .safetensors).
        new: The new model, or its (N, d_new) embeddings of the texts, or a file of them.
        texts: N texts: a list, or another iterable of strings. A sample of the texts in the index is enough.
        seed: Seed of the held-out texts.
        options: How models embed that are given by name; see `informin.jobs.models.ModelOptions`.

    Returns:
        The decision, what each alternative is expected to give, and the bridge, fitted on all texts.

    Raises:
        UsageError: A model, the texts or the embeddings cannot be used, or there are fewer than 100 texts.
    """
    how = ModelOptions(**options)
    require_seed(seed)
    found = as_texts(texts, "texts")
    check_texts(found)
    old_vectors, new_vectors = (_vectors(given, found, how) for given in (old, new))
    return UpgradeResult(Bridge.fit(new_vectors, old_vectors), expect(found, new_vectors, old_vectors, seed))


def _vectors(given: str | Path | Model | ArrayLike, texts: list[str], how: ModelOptions) -> np.ndarray:
    """Return the embeddings (N, d) of the texts."""
    is_model = isinstance(given, str | Path | Model) or is_sentence_transformer(given)
    if is_model and not is_vector_file(given):
        return embed_in_memory(text_encoder(given, how), texts)  # type: ignore[arg-type]
    vectors, name = given_vectors(given)  # type: ignore[arg-type]
    check_rows(name, vectors, texts)
    return np.asarray(vectors)
