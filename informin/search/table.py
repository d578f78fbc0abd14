"""Queries embedded by a table of token vectors, with NumPy and tokenizers alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from informin.rows import unit_rows


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
            np.save(folder / "as_queries.npy", self.as_queries)

    @classmethod
    def load(cls, folder: Path) -> "QueryTable":
        """Open what `save` wrote, memory-mapped."""
        files = [folder / name for name in ("table.npy", "tokens.npy", "as_queries.npy")]
        arrays = [np.load(file, mmap_mode="r") for file in files if file.is_file()]
        return cls(Tokenizer.from_file(str(folder / "tokenizer.json")), *arrays)
