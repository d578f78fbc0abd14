"""Queries embedded by a table of token vectors, with NumPy and tokenizers alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from informin.rows import unit_rows

AS_QUERIES = "as_queries.npy"


@dataclass
class QueryTable:
    """A table that `informin.adapters.table` fitted to the documents of an index.

    Attributes:
        tokenizer: Tokenizer of the model, without truncation and padding.
        rows: (V, d) token vectors. A query has the direction of their sum.
        alone: (V, d) the model's embedding of each token alone, to fit the table again.
        as_queries: (N, d) float16 the documents embedded as queries, to fit the table again; None if the model embeds
            queries and documents alike.
    """

    tokenizer: Tokenizer
    rows: np.ndarray
    alone: np.ndarray
    as_queries: np.ndarray | None = None

    def encode(self, queries: Sequence[str]) -> np.ndarray:
        """Return unit vectors (Q, d) float32; zeros without a known token."""
        encodings = self.tokenizer.encode_batch_fast(list(queries), add_special_tokens=False)
        return unit_rows(np.stack([self.rows[encoding.ids].sum(0, np.float32) for encoding in encodings]))

    def save(self, folder: Path) -> None:
        """Write the files of the table."""
        self.tokenizer.save(str(folder / "tokenizer.json"))
        np.save(folder / "table.npy", self.rows)
        np.save(folder / "tokens.npy", self.alone)
        if self.as_queries is not None:
            np.save(folder / AS_QUERIES, self.as_queries)

    @classmethod
    def load(cls, folder: Path) -> "QueryTable":
        """Open what `save` wrote, memory-mapped."""
        rows = np.load(folder / "table.npy", mmap_mode="r")
        alone = np.load(folder / "tokens.npy", mmap_mode="r")
        has_queries = (folder / AS_QUERIES).is_file()
        as_queries = np.load(folder / AS_QUERIES, mmap_mode="r") if has_queries else None
        tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text(encoding="utf-8"))
        return cls(tokenizer, rows, alone, as_queries)
