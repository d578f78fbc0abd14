"""Static embeddings of the queries of an index: sums of token vectors, without the model and torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from informin.evaluation.rows import unit_rows
from informin.frozen.late_interaction import Tokens, without_context

AS_QUERIES = "as_queries.npy"
MEANS = "means.npy"


@dataclass
class StaticQueries:
    """Token vectors that embed queries without a model, fitted by `informin.frozen.static` to the texts of an index.

    Attributes:
        tokenizer: Tokenizer of the model, without truncation and padding.
        rows: (V, d) token vectors. A query has the direction of their sum.
        alone: (V, d) the model's embedding of each token alone, to fit the rows again.
        as_queries: (N, d) float16 the documents embedded as queries, to fit the rows again; None if the model embeds
            queries and documents alike.
        means: What `TokenVectors.means` returns for the documents; None for an index that does not rerank.
    """

    tokenizer: Tokenizer
    rows: np.ndarray
    alone: np.ndarray
    as_queries: np.ndarray | None = None
    means: np.ndarray | None = None

    @cached_property
    def model_tokenizer(self) -> Tokenizer:
        """The tokenizer without the words that were added to it, whose tokens the model sees."""
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
        """Write the files."""
        self.tokenizer.save(str(folder / "tokenizer.json"))
        np.save(folder / "table.npy", self.rows)
        np.save(folder / "tokens.npy", self.alone)
        if self.as_queries is not None:
            np.save(folder / AS_QUERIES, self.as_queries)
        if self.means is not None:
            np.save(folder / MEANS, self.means)

    @classmethod
    def load(cls, folder: Path) -> "StaticQueries":
        """Open what `save` wrote, memory-mapped."""
        rows = np.load(folder / "table.npy", mmap_mode="r")
        alone = np.load(folder / "tokens.npy", mmap_mode="r")
        more = [folder / AS_QUERIES, folder / MEANS]
        as_queries, means = (np.load(path, mmap_mode="r") if path.is_file() else None for path in more)
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
