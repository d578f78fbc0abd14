"""What an index computes from its texts: vectors, smoothed vectors, the table for queries, and the threshold."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from informin.adapters.scores import UnrelatedScores, unrelated_scores
from informin.evaluation.token_vectors import has_token_vectors
from informin.evaluation.tokens import BYTES, Projection, TokenVectors, embed_documents, embed_queries
from informin.evaluation.words import Words, versions
from informin.models.embedding import encode_in_shares
from informin.neighbors import smooth_rows
from informin.rows import unit_rows
from informin.search.entries import Entries
from informin.search.fitting import embed_as_queries, fit_query_table
from informin.search.record import IndexRecord
from informin.search.state import Queries, State
from informin.search.table import QueryTable

COUNTED_TEXTS = 1_000  # texts whose tokens are counted


def embed_unit(
    model: SentenceTransformer, texts: Sequence[str], side: str, prompt: str | None, **options: Any
) -> np.ndarray:
    """Return the embeddings (N, d) float32 of texts, of unit length unless the model is compared by dot product.

    Args:
        model: The model.
        texts: N texts.
        side: `query` or `document`.
        prompt: Prompt prepended to each text; None for the model's.
        options: Further options of `encode_in_shares`.
    """
    vectors = encode_in_shares(model, texts, side=side, prompt=prompt, **options)
    return scaled(model, vectors)


def embed_with_tokens(
    model: SentenceTransformer, texts: list[str], prompt: str | None, batch_size: int, projection: Projection | None
) -> tuple[np.ndarray, TokenVectors]:
    """Return the embeddings of documents as `embed_unit`, and their token vectors, from one forward pass."""
    vectors, tokens = embed_documents(model, texts, prompt, batch_size, projection)
    return scaled(model, vectors), tokens


def embed_queries_with_tokens(
    model: SentenceTransformer, queries: list[str], prompt: str | None, tokens: TokenVectors
) -> Queries:
    """Return the embeddings of queries as `embed_unit`, and their tokens, from one forward pass."""
    vectors, asked = embed_queries(model, queries, tokens.projection, prompt)
    return Queries(scaled(model, vectors), asked)


def scaled(model: SentenceTransformer, vectors: np.ndarray) -> np.ndarray:
    """Return vectors (N, d) with unit length, or as they are for a model that is compared by dot product."""
    return vectors if model.similarity_fn_name == "dot" else unit_rows(vectors)


def second_look_bytes(model: SentenceTransformer, texts: list[str]) -> int | None:
    """Return about how many bytes the token vectors of texts take, from a sample of them; None if there are none."""
    if not has_token_vectors(model):
        return None
    sample = texts[:: -(-len(texts) // COUNTED_TEXTS)]
    features = model.preprocess(sample)
    tokens = features["attention_mask"].sum() if "attention_mask" in features else features["input_ids"].numel()
    return int(tokens) * len(texts) // len(sample) * BYTES


def derive(
    record: IndexRecord,
    entries: Entries,
    vectors: np.ndarray,
    words: Words,
    model: Callable[[], SentenceTransformer],
    old: State | None = None,
    tokens: TokenVectors | None = None,
) -> State:
    """Return the state of an index of some texts.

    Args:
        record: Settings.
        entries: The N texts.
        vectors: (N, d) float16, their embeddings.
        words: Their words.
        model: Function that opens the model, which removing texts does not need.
        old: The state before texts were added or removed.
        tokens: Their token vectors, for a second look.
    """
    documents = vectors
    table = None
    if record.by_table:
        table, documents = _fit(record, entries, vectors, model, old)
        if tokens:
            table = replace(table, means=tokens.means())
    elif record.smooth:
        documents = smooth_rows(vectors.astype(np.float32)).astype(np.float16)
    scores = record.scores
    has_grown = scores is None or len(entries) > 2 * scores["texts"]  # they are measured in seconds
    if has_grown and (table or model().similarity_fn_name != "dot"):
        measured = unrelated_scores(vectors, table.encode(entries.texts) if table else None, documents)
        scores = asdict(measured) if measured else None
    threshold = UnrelatedScores(**scores).threshold(texts=len(entries)) if scores else None
    record = replace(record, scores=scores, threshold=threshold, words=versions())
    return State(record, entries, vectors, documents, words, table, tokens)


def _fit(
    record: IndexRecord,
    entries: Entries,
    vectors: np.ndarray,
    model: Callable[[], SentenceTransformer],
    old: State | None,
) -> tuple[QueryTable, np.ndarray]:
    """Return the table, and the vectors (N, d) float16 of the documents."""

    def encode(texts: list[str]) -> np.ndarray:
        return embed_unit(model(), texts, "query", record.query_prompt, title="as queries").astype(np.float16)

    texts = entries.texts
    if old is None or old.table is None:
        as_queries = None if _embeds_alike(record, texts[:1], model()) else encode(texts)
        return fit_query_table(model, texts, vectors, encode, as_queries, None)
    before = old.table.as_queries
    known = {} if before is None else dict(zip(old.entries.texts, before))
    as_queries = None if before is None else embed_as_queries(texts, encode, known)
    return fit_query_table(model, texts, vectors, encode, as_queries, old.table)


def _embeds_alike(record: IndexRecord, texts: list[str], model: SentenceTransformer) -> bool:
    """Return whether the model embeds some texts alike as queries and as documents."""
    embed_some = partial(embed_unit, model, texts, title=None)
    return np.array_equal(embed_some("query", record.query_prompt), embed_some("document", record.prompt))
