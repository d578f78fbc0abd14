"""What an index asks of its model: opening it, embedding texts and queries, and all that is computed from vectors."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from informin.errors import UsageError
from informin.evaluation.rows import unit_rows
from informin.fast.precision import Precision
from informin.frozen.adapter import smooth_rows
from informin.frozen.bm25 import BM25, versions
from informin.frozen.index_entries import Entries, IndexRecord
from informin.frozen.index_search import Queries, State
from informin.frozen.late_interaction import BYTES, TokenVectors
from informin.frozen.static import (
    VOCABULARY,
    add_words,
    count_tokens,
    distill_vectors,
    embed_tokens,
    tokenizer_of,
)
from informin.frozen.static_queries import StaticQueries, added_words
from informin.frozen.token_vectors import (
    TEXTS_IN_MEMORY,
    check_token_vectors,
    embed_documents,
    embed_queries,
    has_token_vectors,
)
from informin.frozen.unrelated import UnrelatedScores, unrelated_scores
from informin.model.checksums import model_sha256
from informin.model.embedding import encode_in_shares
from informin.model.open import load_finished, loading_to_embed, name_of

COUNTED_TEXTS = 1_000  # texts whose tokens are counted


def check_model(model: SentenceTransformer, smooth: bool, static_queries: bool, rerank: bool) -> None:
    """Raise UsageError for a model that cannot do what an index asks of it."""
    if (smooth or static_queries) and similarity_of(model) == "dot":
        option = "queries" if static_queries else "smooth"
        raise UsageError(f"needs cosines, and {name_of(model)} is compared by dot product", option=option)
    if static_queries:
        tokenizer_of(model)
    if rerank:
        check_token_vectors(model)


def similarity_of(model: SentenceTransformer) -> str:
    """Return how an index compares the vectors of a model: `dot`, or `cosine` for every other similarity."""
    return "dot" if model.similarity_fn_name == "dot" else "cosine"


def open_model(
    record: IndexRecord,
    model: str | Path | SentenceTransformer | None,
    trust_remote_code: bool,
    precision: Precision | None = None,
) -> SentenceTransformer:
    """Open the model of an index with the options of the index.

    Args:
        record: The record of the index.
        model: Where the model is; None for where it was.
        trust_remote_code: Allow code from the model's repository to run.
        precision: See `Index.load`.

    Raises:
        UsageError: It is another model.
    """
    where = record.model if model is None else model
    kept: Any = {} if isinstance(where, SentenceTransformer) else record.loading
    kept = kept | {"trust_remote_code": trust_remote_code, "precision": precision}
    options = loading_to_embed(where, kept)
    try:
        st = load_finished(where, "model_name", f"the model of the index, {record.model}", **options)
    except UsageError as error:
        if model is not None or error.option != "model_name":
            raise
        fix = "If the model has moved, give its new folder; if it was in memory, pass it to `Index.load` as `model`."
        raise UsageError(f"{error.found} (the model of the index)", option="model_name", fix=fix) from error
    if model_sha256(st) != record.model_sha256:
        found = f"The index was built with {record.model}, and {name_of(st)} is another model"
        raise UsageError(found, fix="Use the model of the index, or build the index again.")
    if record.similarity != similarity_of(st):
        found = f"The index compares by {record.similarity}, and {name_of(st)} by {similarity_of(st)}"
        raise UsageError(found, fix="Set `similarity_fn_name` of the model as before, or build the index again.")
    return st


def embed_entries(
    model: SentenceTransformer,
    record: IndexRecord,
    entries: Entries,
    batch_size: int,
    before: TokenVectors | None = None,
) -> tuple[np.ndarray, TokenVectors | None]:
    """Return the vectors (N, d) float16 of N texts; and in an index that reranks, their token vectors.

    Args:
        model: The model.
        record: Settings of the index.
        entries: The texts.
        batch_size: Texts per forward pass.
        before: Token vectors of earlier texts of the index, which come before theirs.
    """
    texts, prompt = entries.texts, record.document_prompt
    if not record.rerank:
        return as_stored(embed_unit(model, texts, "document", prompt, batch_size=batch_size)), None
    vectors, tokens = embed_documents(model, texts, prompt, batch_size, before.projection if before else None)
    return as_stored(scaled(model, vectors)), TokenVectors.join([before, tokens]) if before else tokens


def embed_asked(
    model: SentenceTransformer, record: IndexRecord, queries: list[str], tokens: TokenVectors | None
) -> Queries:
    """Return the vectors of queries; and in an index that reranks, their tokens, from the same forward pass."""
    if tokens is None:
        return Queries(embed_unit(model, queries, "query", record.query_prompt, title=None))
    vectors, asked = embed_queries(model, queries, tokens.projection, record.query_prompt)
    return Queries(scaled(model, vectors), asked)


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


def scaled(model: SentenceTransformer, vectors: np.ndarray) -> np.ndarray:
    """Return vectors (N, d) with unit length, or as they are for a model that is compared by dot product."""
    return vectors if model.similarity_fn_name == "dot" else unit_rows(vectors)


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


def derive(
    record: IndexRecord,
    entries: Entries,
    vectors: np.ndarray,
    bm25: BM25,
    model: Callable[[], SentenceTransformer],
    old: State | None = None,
    tokens: TokenVectors | None = None,
) -> State:
    """Return the state of an index of some texts.

    Args:
        record: Settings.
        entries: The N texts.
        vectors: (N, d) float16, their embeddings.
        bm25: BM25 weights of their words.
        model: Function that opens the model, which removing texts does not need.
        old: The state before texts were added or removed.
        tokens: Their token vectors, to rerank hits.
    """
    documents = vectors
    static = None
    if record.queries == "static":
        static, documents = _fit_queries(record, entries, vectors, model, old)
        if tokens:
            static = replace(static, means=tokens.means())
    elif record.smooth:
        documents = smooth_rows(vectors.astype(np.float32)).astype(np.float16)
    unrelated = UnrelatedScores(**record.scores) if record.scores else None
    kept = int((entries.rows < record.measured).sum())  # of the texts whose cosines were measured, which takes seconds
    has_changed = unrelated is None or 2 * kept < max(len(entries), unrelated.texts)
    if has_changed and record.similarity != "dot":
        record = replace(record, measured=record.next_row)
        unrelated = unrelated_scores(vectors, static.encode(entries.texts) if static else None, documents)
    scores = asdict(unrelated) if unrelated else None
    threshold = unrelated.threshold(texts=len(entries)) if unrelated else None
    record = replace(record, scores=scores, threshold=threshold, words=versions())
    return State(record, entries, vectors, documents, bm25, static, tokens)


def _fit_queries(
    record: IndexRecord,
    entries: Entries,
    vectors: np.ndarray,
    model: Callable[[], SentenceTransformer],
    old: State | None,
) -> tuple[StaticQueries, np.ndarray]:
    """Fit the static embeddings of queries, again after texts were added or removed.

    Nothing of a removed text remains: neither its words as tokens, nor, in a large vocabulary, which tokens it had.

    Returns:
        The static embeddings, and the adapted and smoothed vectors (N, d) float16 of the documents.
    """

    def encode(texts: list[str]) -> np.ndarray:
        return embed_unit(model(), texts, "query", record.query_prompt, title="as queries").astype(np.float16)

    texts = entries.texts
    before = old.static_queries if old else None
    if old is None or before is None:
        as_queries = None if _embeds_alike(record, texts[:1], model()) else encode(texts)
    elif before.as_queries is None:
        as_queries = None
    else:
        known = dict(zip(old.entries.texts, before.as_queries))
        new = [text for text in dict.fromkeys(texts) if text not in known]
        known |= dict(zip(new, encode(new))) if new else {}
        as_queries = np.stack([known[text] for text in texts])
    plain = before.model_tokenizer if before else tokenizer_of(model())
    own_words = before.own_words if before else added_words(plain, {})
    tokenizer = add_words(plain, texts)
    counts = count_tokens(tokenizer, texts)
    alone = embed_tokens(encode, tokenizer, counts, _known_tokens(before, tokenizer, counts) if before else None)
    x = vectors.astype(np.float32)
    try:
        adapter, rows = distill_vectors(x, counts, alone, "search", as_queries)
    except UsageError as error:  # too few different texts, or texts without a token that the tokenizer knows
        if before is None:
            found = f"is static, which cannot be fitted to these texts ({error.found})"
            raise UsageError(found, option="queries", needed="model") from error
        return StaticQueries(tokenizer, alone, alone, as_queries, None, own_words), vectors
    documents = adapter.transform(x, smooth=True).astype(np.float16)
    return StaticQueries(tokenizer, rows.astype(np.float16), alone, as_queries, None, own_words), documents


def _embeds_alike(record: IndexRecord, texts: list[str], model: SentenceTransformer) -> bool:
    """Return whether the model embeds some texts alike as queries and as documents."""
    embed_some = partial(embed_unit, model, texts, title=None)
    return np.array_equal(embed_some("query", record.query_prompt), embed_some("document", record.document_prompt))


def _known_tokens(old: StaticQueries, tokenizer: Tokenizer, counts: csr_array) -> np.ndarray:
    """Return the embeddings (V, d) of the tokens alone that were embedded before; zeros for the others."""
    words = added_words(tokenizer, old.own_words)
    old_words = added_words(old.tokenizer, old.own_words)
    size = counts.shape[1]
    plain = size - len(words)
    known = np.zeros((size, old.alone.shape[1]), old.alone.dtype)
    known[:plain] = old.alone[:plain]
    for word in words.keys() & old_words.keys():
        known[words[word]] = old.alone[old_words[word]]
    if size > VOCABULARY:
        known[np.setdiff1d(np.arange(size), counts.indices)] = 0
    return known


def projected_texts(rerank: bool, texts: int) -> int:
    """Return how many texts of an index the projection of its token vectors is fitted to."""
    return min(texts, TEXTS_IN_MEMORY) if rerank else 0


def fits_projection_again(record: IndexRecord, texts: int) -> bool:
    """Return whether an index of few texts has grown so much that all its texts are embedded again.

    The projection of a few texts suits the others less. It is fitted again when their number has doubled.
    """
    return 0 < record.projected < TEXTS_IN_MEMORY and texts > 2 * record.projected


def token_vector_bytes(model: SentenceTransformer, texts: list[str]) -> int | None:
    """Return about how many bytes the token vectors of texts take, from a sample of them; None if there are none."""
    if not has_token_vectors(model):
        return None
    sample = texts[:: -(-len(texts) // COUNTED_TEXTS)]
    features = model.preprocess(sample)
    tokens = features["attention_mask"].sum() if "attention_mask" in features else features["input_ids"].numel()
    return int(tokens) * len(texts) // len(sample) * BYTES
