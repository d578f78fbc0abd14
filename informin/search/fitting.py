"""Fit the table for queries, and fit it again after texts were added or removed. Needs torch.

Nothing of a removed text remains: neither its words as tokens, nor, in a large vocabulary, which tokens it had.
"""

from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_array
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from informin.adapters.table import (
    VOCABULARY,
    add_words,
    count_tokens,
    distill_vectors,
    embed_tokens,
    tokenizer_of,
)
from informin.search.table import QueryTable, is_word, without_words

EncodeQueries = Callable[[list[str]], np.ndarray]  # from texts to their embeddings as queries


def fit_query_table(
    model: Callable[[], SentenceTransformer],
    texts: list[str],
    vectors: np.ndarray,
    encode: EncodeQueries,
    as_queries: np.ndarray | None,
    old: QueryTable | None,
) -> tuple[QueryTable, np.ndarray]:
    """Return the table, and the adapted and smoothed vectors (N, d) float16 of the documents.

    Args:
        model: Function that opens the model, for its tokenizer. It is called without `old`.
        texts: N texts.
        vectors: (N, d) their embeddings as documents.
        encode: Embeds tokens that `old` lacks.
        as_queries: (N, d) the texts as queries; None if the model embeds queries and documents alike.
        old: The table before texts were added or removed.
    """
    plain = without_words(old.tokenizer) if old else tokenizer_of(model())
    tokenizer = add_words(plain, texts)
    counts = count_tokens(tokenizer, texts)
    known = _known_tokens(old, tokenizer, counts) if old else None
    alone = embed_tokens(encode, tokenizer, counts, known)
    x = vectors.astype(np.float32)
    adapter, table = distill_vectors(x, counts, alone, "search", as_queries)
    documents = adapter.transform(x, smooth=True).astype(np.float16)
    return QueryTable(tokenizer, table.astype(np.float16), alone, as_queries), documents


def embed_as_queries(texts: list[str], encode: EncodeQueries, known: dict[str, np.ndarray]) -> np.ndarray:
    """Return the embeddings (N, d) of texts as queries. Those in `known` are not embedded again."""
    new = [text for text in dict.fromkeys(texts) if text not in known]
    if new:
        known = known | dict(zip(new, encode(new)))
    return np.stack([known[text] for text in texts])


def _added_words(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the tokens that `add_words` added."""
    added = tokenizer.get_added_tokens_decoder().items()
    return {token.content: number for number, token in added if is_word(token.single_word, token.special)}


def _known_tokens(old: QueryTable, tokenizer: Tokenizer, counts: csr_array) -> np.ndarray:
    """Return the embeddings (V, d) of the tokens alone that the old table has; zeros for the others."""
    words = _added_words(tokenizer)
    old_words = _added_words(old.tokenizer)
    size = counts.shape[1]
    plain = size - len(words)
    known = np.zeros((size, old.alone.shape[1]), old.alone.dtype)
    known[:plain] = old.alone[:plain]
    for word in words.keys() & old_words.keys():
        known[words[word]] = old.alone[old_words[word]]
    if size > VOCABULARY:
        known[np.setdiff1d(np.arange(size), counts.indices)] = 0
    return known
