"""Static embeddings of the queries of an index: sums of token vectors, without the model and torch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from informin.evaluation.rows import unit_rows
from informin.files import read_json, write_json
from informin.frozen.late_interaction import Tokens, without_context

AS_QUERIES = "as_queries.npy"
MEANS = "means.npy"
OWN_WORDS = "own_words.json"


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
        own_words: Numbers of tokens of the model that resemble added words, such as those that `distill` added.
    """

    tokenizer: Tokenizer
    rows: np.ndarray
    alone: np.ndarray
    as_queries: np.ndarray | None = None
    means: np.ndarray | None = None
    own_words: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def model_tokenizer(self) -> Tokenizer:
        """The tokenizer without the words that were added to it, whose tokens the model sees."""
        return without_words(self.tokenizer, self.own_words)

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
        if self.own_words:
            write_json(folder / OWN_WORDS, self.own_words)

    @classmethod
    def load(cls, folder: Path) -> "StaticQueries":
        """Open what `save` wrote, memory-mapped."""
        rows = np.load(folder / "table.npy", mmap_mode="r")
        alone = np.load(folder / "tokens.npy", mmap_mode="r")
        more = [folder / AS_QUERIES, folder / MEANS]
        as_queries, means = (np.load(path, mmap_mode="r") if path.is_file() else None for path in more)
        tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text(encoding="utf-8"))
        own_words = read_json(folder / OWN_WORDS) if (folder / OWN_WORDS).is_file() else {}
        return cls(tokenizer, rows, alone, as_queries, means, own_words)


def without_words(tokenizer: Tokenizer, own_words: Mapping[str, int]) -> Tokenizer:
    """Return a copy of a tokenizer without the tokens that `informin.frozen.static.add_words` added."""
    words = added_words(tokenizer, own_words)
    values = json.loads(tokenizer.to_str())
    values["added_tokens"] = [token for token in values["added_tokens"] if token["content"] not in words]
    return Tokenizer.from_str(json.dumps(values))


def added_words(tokenizer: Tokenizer, own_words: Mapping[str, int]) -> dict[str, int]:
    """Return the tokens that `add_words` added: those that resemble words, without the model's own."""
    added = tokenizer.get_added_tokens_decoder().items()
    words = {token.content: number for number, token in added if token.single_word and not token.special}
    return {word: number for word, number in words.items() if word not in own_words}
