"""Queries embedded by a table of token vectors, with NumPy and tokenizers alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from informin.evaluation.metrics.alignment_uniformity.formula import unit


@dataclass
class QueryTable:
    """A table that `informin.adapters.table` fitted to the documents of an index.

    Attributes:
        tokenizer: Tokenizer of the model, without truncation and padding.
        rows: (V, d) token vectors. A query has the direction of their sum.
        alone: (V, d) the model's embedding of each token alone, to fit the table again.
    """

    tokenizer: Tokenizer
    rows: np.ndarray
    alone: np.ndarray

    def encode(self, queries: Sequence[str]) -> np.ndarray:
        """Return unit vectors (Q, d) float32; zeros without a known token."""
        encodings = self.tokenizer.encode_batch_fast(list(queries), add_special_tokens=False)
        return unit(np.stack([self.rows[encoding.ids].sum(0, np.float32) for encoding in encodings])).astype(np.float32)

    def save(self, folder: Path) -> None:
        """Write the files of the table."""
        self.tokenizer.save(str(folder / "tokenizer.json"))
        np.save(folder / "table.npy", self.rows)
        np.save(folder / "tokens.npy", self.alone)

    @classmethod
    def load(cls, folder: Path) -> "QueryTable":
        """Open what `save` wrote, memory-mapped."""
        rows, alone = (np.load(folder / name, mmap_mode="r") for name in ("table.npy", "tokens.npy"))
        return cls(Tokenizer.from_file(str(folder / "tokenizer.json")), rows, alone)
