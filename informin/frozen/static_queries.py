"""Fit the table for queries, and fit it again after texts were added or removed. Needs torch.

Nothing of a removed text remains: neither its words as tokens, nor, in a large vocabulary, which tokens it had.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from informin.evaluation.rows import unit_rows
from informin.frozen.late_interaction import Tokens, without_context
from informin.frozen.static import VOCABULARY, add_words, count_tokens, distill_vectors, embed_tokens, tokenizer_of

AS_QUERIES = "as_queries.npy"
MEANS = "means.npy"


@dataclass
class QueryTable:
    """A table that `informin.frozen.static` fitted to the documents of an index.

    Attributes:
        tokenizer: Tokenizer of the model, without truncation and padding.
        rows: (V, d) token vectors. A query has the direction of their sum.
        alone: (V, d) the model's embedding of each token alone, to fit the table again.
        as_queries: (N, d) float16 the documents embedded as queries, to fit the table again; None if the model embeds
            queries and documents alike.
        means: What `TokenVectors.means` returns for the documents; None for an index without a second look.
    """

    tokenizer: Tokenizer
    rows: np.ndarray
    alone: np.ndarray
    as_queries: np.ndarray | None = None
    means: np.ndarray | None = None

    @cached_property
    def model_tokenizer(self) -> Tokenizer:
        """The tokenizer without the words that were added for the table, whose tokens the model sees."""
        return without_words(self.tokenizer)

    def encode(self, queries: Sequence[str]) -> np.ndarray:
        """Return unit vectors (Q, d) float32; zeros without a known token."""
        encodings = self.tokenizer.encode_batch_fast(list(queries), add_special_tokens=False)
        return unit_rows(np.stack([self.rows[encoding.ids].sum(0, np.float32) for encoding in encodings]))

    def tokens(self, queries: Sequence[str]) -> list[Tokens]:
        """Return the tokens of each query that the documents have, with their mean vectors. Empty without `means`."""
        if self.means is None:
            return []
        encodings = self.model_tokenizer.encode_batch_fast(list(queries), add_special_tokens=False)
        return [without_context(np.array(encoding.ids, int), self.means) for encoding in encodings]

    def save(self, folder: Path) -> None:
        """Write the files of the table."""
        self.tokenizer.save(str(folder / "tokenizer.json"))
        np.save(folder / "table.npy", self.rows)
        np.save(folder / "tokens.npy", self.alone)
        if self.as_queries is not None:
            np.save(folder / AS_QUERIES, self.as_queries)
        if self.means is not None:
            np.save(folder / MEANS, self.means)

    @classmethod
    def load(cls, folder: Path) -> "QueryTable":
        """Open what `save` wrote, memory-mapped."""
        rows = np.load(folder / "table.npy", mmap_mode="r")
        alone = np.load(folder / "tokens.npy", mmap_mode="r")
        as_queries = _mapped_if_there(folder / AS_QUERIES)
        means = _mapped_if_there(folder / MEANS)
        tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text(encoding="utf-8"))
        return cls(tokenizer, rows, alone, as_queries, means)


def without_words(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy of a tokenizer without the tokens that `informin.frozen.static.add_words` added."""
    values = json.loads(tokenizer.to_str())
    added = values["added_tokens"]
    values["added_tokens"] = [token for token in added if not is_word(token["single_word"], token["special"])]
    return Tokenizer.from_str(json.dumps(values))


def is_word(single_word: bool, special: bool) -> bool:
    """Return whether a token with these properties is one that `add_words` added."""
    return single_word and not special


def _mapped_if_there(path: Path) -> np.ndarray | None:
    return np.load(path, mmap_mode="r") if path.is_file() else None


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
