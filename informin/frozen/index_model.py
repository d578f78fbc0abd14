"""The model of an index: what it must be able to do, opening it, and embedding texts for the index."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from informin.errors import UsageError
from informin.frozen.index_state import Entries, IndexRecord
from informin.frozen.late_interaction import TokenVectors
from informin.frozen.token_vectors import TEXTS_IN_MEMORY

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


# Functions import torch, so that an index with a table for queries starts without it.


def check_model(model: "SentenceTransformer", smooth: bool, by_table: bool, second_look: bool) -> None:
    """Raise UsageError for a model that cannot do what an index asks of it."""
    from informin.frozen.static import tokenizer_of
    from informin.frozen.token_vectors import check_token_vectors

    if smooth or by_table:
        check_cosines(model, "queries" if by_table else "smooth")
    if by_table:
        tokenizer_of(model)
    if second_look:
        check_token_vectors(model)


def check_cosines(st: "SentenceTransformer", option: str) -> None:
    """Raise UsageError if a model is compared by dot product."""
    from informin.model.open import name_of

    if similarity_of(st) == "dot":
        raise UsageError(f"needs cosines, and {name_of(st)} is compared by dot product", option=option)


def similarity_of(model: "SentenceTransformer") -> str:
    """Return how an index compares the vectors of a model: `dot`, or `cosine` for every other similarity."""
    return "dot" if model.similarity_fn_name == "dot" else "cosine"


def open_model(
    record: IndexRecord, model: "str | Path | SentenceTransformer | None", trust_remote_code: bool
) -> "SentenceTransformer":
    """Open the model of an index with the options of the index.

    Args:
        record: The record of the index.
        model: Where the model is; None for where it was.
        trust_remote_code: Allow code from the model's repository to run.

    Raises:
        UsageError: It is another model.
    """
    from informin.model.checksums import model_sha256
    from informin.model.open import load_finished, name_of

    where = record.model if model is None else model
    how = record.loading | {"trust_remote_code": trust_remote_code}
    try:
        st = load_finished(where, "model_name", f"the model of the index, {record.model}", **how)
    except UsageError as error:
        if model is not None or error.option != "model_name":
            raise
        fix = "If the model has moved, give its new folder; if it was in memory, pass it to `Index.load` as `model`."
        raise UsageError(f"{error.found} (the model of the index)", option="model_name", fix=fix) from error
    if model_sha256(st) != record.model_sha256:
        found = f"The index was built with {record.model}, and {name_of(st)} is another model"
        raise UsageError(found, fix="Use the model of the index, or build the index again.")
    if record.similarity not in ("", similarity_of(st)):
        found = f"The index compares by {record.similarity}, and {name_of(st)} by {similarity_of(st)}"
        raise UsageError(found, fix="Set `similarity_fn_name` of the model as before, or build the index again.")
    return st


def embed_entries(
    model: "SentenceTransformer",
    record: IndexRecord,
    entries: Entries,
    batch_size: int,
    before: TokenVectors | None = None,
) -> tuple[np.ndarray, TokenVectors | None]:
    """Return the vectors (N, d) float16 of N texts; and in an index with a second look, their token vectors.

    Args:
        model: The model.
        record: Settings of the index.
        entries: The texts.
        batch_size: Texts per forward pass.
        before: Token vectors of earlier texts of the index, which come before theirs.
    """
    from informin.frozen.index_state import embed_unit, embed_with_tokens

    if not record.second_look:
        vectors = embed_unit(model, entries.texts, "document", record.prompt, batch_size=batch_size)
        return as_stored(vectors), None
    projection = before.projection if before else None
    vectors, tokens = embed_with_tokens(model, entries.texts, record.prompt, batch_size, projection)
    return as_stored(vectors), TokenVectors.join([before, tokens]) if before else tokens


def as_stored(vectors: np.ndarray) -> np.ndarray:
    """Return vectors as float16, or raise UsageError if it cannot hold their largest number, or not precisely."""
    largest = np.abs(vectors).max(initial=0)
    limits = np.finfo(np.float16)
    if largest > limits.max or 0 < largest < limits.tiny:
        raise UsageError(
            f"embeds texts with numbers up to {largest:.3g}",
            option="model_name",
            needed=f"a largest one between {limits.tiny:.1g} and {limits.max:,.0f}, because the index stores float16",
            fix="Use a model that is compared by cosine.",
        )
    return vectors.astype(np.float16)


def projected_texts(second_look: bool, texts: int) -> int:
    """Return how many texts of an index the projection of its token vectors is fitted to."""
    return min(texts, TEXTS_IN_MEMORY) if second_look else 0


def fits_projection_again(record: IndexRecord, texts: int) -> bool:
    """Return whether an index of few texts has grown so much that all its texts are embedded again.

    The projection of a few texts suits the others less. It is fitted again when their number has doubled.
    """
    return 0 < record.projected < TEXTS_IN_MEMORY and texts > 2 * record.projected
