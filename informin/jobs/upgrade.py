"""Decide what to do with the index of an old embedding model when a new one is at hand, without labels."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from typing_extensions import Unpack

from informin.adapters.bridge import AGAIN, BRIDGE, DECISIONS, FIT, STAY, Bridge, Expected, check_held_out, expect
from informin.adapters.prediction import HalvesTest, make_test, make_tests
from informin.adapters.rows import read_rows
from informin.adapters.vectors import load_vectors
from informin.errors import UsageError
from informin.jobs.compare import Drawn, draw
from informin.jobs.given_vectors import check_halves, is_vector_file
from informin.jobs.models import ModelKeywords, ModelOptions, embed_in_memory, text_encoder
from informin.models.model import Model
from informin.models.texts import as_texts

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
        """`stay`, `fit` or `again`. `expected.best_with_old_index` can also be `bridge`."""
        return self.expected.best

    @property
    def bridge_is_best(self) -> bool:
        """Whether the bridge is the decision if the texts cannot be embedded again."""
        return self.expected.best_with_old_index == BRIDGE

    def __repr__(self) -> str:
        expected = self.expected
        return "\n".join([
            f"Rank of the second half of {expected.texts:,} held-out texts, searched with the first half (1 is best):",
            *(f"  {name:6} {expected.rank(name):6.2f}  {MEANING[name]}" for name in DECISIONS),
            f"Decision: {self.decision}. Without embedding again: {expected.best_with_old_index}.",
            *([USE] if self.bridge_is_best else []),
        ])  # fmt: skip


def upgrade(
    old: str | Path | Model,
    new: str | Path | Model,
    texts: Iterable[str],
    *,
    max_texts: int = 5_000,
    seed: int = 0,
    **options: Unpack[ModelKeywords],
) -> UpgradeResult:
    """Compare staying with an old model, fitting its index, a bridge to a new model, and embedding again.

    Args:
        old: The old model: Hub id, folder, SentenceTransformer, or a model from `load_model`. Or a file of its
            embeddings (.npy, .parquet or .safetensors), with the rows that `informin compare --write_texts` writes.
        new: The new model, or a file of its embeddings.
        texts: Texts of the index, 250 or more: a list, or another iterable of strings.
        max_texts: Compare on a random sample of at most this many texts.
        seed: Seed of the sample and of the held-out texts.
        options: How models embed that are given by name; see `informin.jobs.models.ModelOptions`.

    Returns:
        The decision, what each alternative is expected to give, and the bridge, fitted on the whole sample.

    Raises:
        UsageError: A model, the texts or the embeddings cannot be used, or there are fewer than 250 texts.
    """
    how = ModelOptions(**options)
    drawn = draw(as_texts(texts, "texts"), max_texts, seed)
    check_held_out(len(drawn.held_out))
    sides = [_embedded(model, drawn, how, seed) for model in (old, new)]
    (old_vectors, old_test), (new_vectors, new_test) = sides
    return UpgradeResult(Bridge.fit(new_vectors, old_vectors), expect(new_test, old_test))


def _embedded(model: str | Path | Model, drawn: Drawn, how: ModelOptions, seed: int) -> tuple[np.ndarray, HalvesTest]:
    """Return the embeddings of the sample, and the test by the halves of the held-out texts."""
    if not is_vector_file(model):
        encoder = text_encoder(model, how)
        vectors = embed_in_memory(encoder, drawn.sample)
        encode, encode_query = (partial(embed_in_memory, side) for side in (encoder, encoder.for_queries()))
        return vectors, make_tests(drawn.sample, vectors, encode, encode_query, seed, most=1)[0]
    whole, size, rows = load_vectors(str(model)), len(drawn.sample), drawn.complete_rows
    if len(whole) != rows:
        needed = f"{rows:,}, those of `write_texts` of informin compare"
        raise UsageError(f"{model} has {len(whole):,} rows", needed=needed)
    check_halves(str(model), whole, drawn.held_out, size)
    vectors = read_rows(whole, slice(0, size))
    return vectors, make_test(drawn.sample, vectors, lambda _: read_rows(whole, slice(size, rows)), seed)
