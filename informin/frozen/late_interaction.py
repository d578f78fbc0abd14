"""Late interaction: token vectors of texts, and the scores that rerank what vectors and BM25 found.

An index that reranks adds to the score of its first hits how near the tokens of the query are to those of the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import csc_array

from informin.errors import UsageError
from informin.evaluation.rows import unit_rows

# Selected in experiments/reranking.py.
CANDIDATES = 50  # texts that are reordered
TOKEN_WEIGHT = 0.25  # of the token score, as a z-score over all texts
TREND = 0.5  # fraction of the trend with the length that is removed: relevant texts are often longer, too
DIRECTIONS = 64
BYTES = DIRECTIONS + 4  # of a token, with its id
BACKGROUND = 100  # texts that stand for all texts
AVERAGED = 2**18  # tokens whose vectors are averaged at once
LEAST_DEVIATION = 1e-6  # below, a deviation is rounding
Tokens = tuple[np.ndarray, np.ndarray]  # ids (n,) and projected unit vectors (n, k) of the tokens of a query


@dataclass(frozen=True)
class TokenVectors:
    """Tokens of N texts with their vectors. Special tokens and prompts are not among them.

    Attributes:
        projection: The projection of all vectors.
        starts: (N + 1,) int64, the first token of each text, and the number of tokens T.
        ids: (T,) int32, ids of the tokens.
        rows: (T, k) int8, the projected vectors. Each row is scaled to a largest absolute value of 127.
        frequencies: (V,) number of texts that contain each token, by id, up to the largest id in the texts.
    """

    projection: "Projection"
    starts: np.ndarray
    ids: np.ndarray
    rows: np.ndarray
    frequencies: np.ndarray

    def __len__(self) -> int:
        return len(self.starts) - 1

    @classmethod
    def counted(cls, projection: "Projection", starts: np.ndarray, ids: np.ndarray, rows: np.ndarray) -> "TokenVectors":
        """Return token vectors with the document frequencies that follow from them."""
        texts = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        size = int(ids.max(initial=0)) + 1
        different = np.unique(texts * size + ids)
        return cls(projection, starts, ids, rows, np.bincount(different % size, minlength=size))

    @classmethod
    def of(cls, texts: Sequence[Tokens], projection: "Projection") -> "TokenVectors":
        """Store the tokens of N texts, as ids (n,) and last hidden states (n, d) of each."""
        starts = np.cumsum([0, *(len(ids) for ids, _ in texts)])
        ids = np.concatenate([ids for ids, _ in texts]).astype(np.int32)
        states = np.concatenate([states for _, states in texts])
        return cls.counted(projection, starts, ids, _as_int8(projection.apply(states)))

    def weights(self, ids: np.ndarray) -> np.ndarray:
        """Return the weights (n,) of tokens: log((N + 1) / (f + 1)) squared, for tokens that are in f of the N texts.

        As in the cosine of two TF-IDF vectors, where the word of the query and that of the text are both weighted.
        """
        known = ids < len(self.frequencies)
        frequencies = np.where(known, self.frequencies[np.where(known, ids, 0)], 0)
        return np.log((len(self) + 1) / (frequencies + 1)) ** 2

    def means(self) -> np.ndarray:
        """Return the mean (V, k) float16 of each token's vectors, with unit length; zeros for tokens without any."""
        sums = np.zeros((len(self.frequencies), self.rows.shape[1]), np.float32)
        for start in range(0, len(self.ids), AVERAGED):
            ids = self.ids[start : start + AVERAGED]
            tokens = csc_array((np.ones(len(ids), np.float32), ids, np.arange(len(ids) + 1)), (len(sums), len(ids)))
            sums += tokens @ unit_rows(self.rows[start : start + AVERAGED].astype(np.float32))
        return unit_rows(sums).astype(np.float16)

    def rerank(self, query: Tokens, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the token scores (P,) of P texts, and what they add to the scores of the index (P,).

        The maximum over tokens grows with the length of a text. So half of the trend with the logarithm of the length
        is removed, and the rest is a z-score over all texts, as the two other parts of the index's score. Trend, mean
        and standard deviation are those of `BACKGROUND` texts at equal distances.

        Args:
            query: What `embed_queries` returns for the query.
            indices: (P,) positions of the texts.
        """
        both = np.append(indices, self.background())
        scores = self.scores(query, both)
        standard = length_corrected_z_scores(scores, self.lengths(both), len(indices))
        return scores[: len(indices)], TOKEN_WEIGHT * standard

    def background(self) -> np.ndarray:
        """Return the positions (B,) of texts that stand for all texts, at equal distances."""
        return np.unique(np.linspace(0, len(self) - 1, BACKGROUND).astype(int))

    def scores(self, query: Tokens, indices: np.ndarray) -> np.ndarray:
        """Return the token scores (P,) of a query and P texts.

        s = sum_i w_i max_j cos(q_i, d_j) / sum_i w_i over the tokens q_i of the query, with their weights w_i, and the
        tokens d_j of the text. It is 0 for texts without tokens, and for a query whose tokens are in all texts.

        Args:
            query: What `embed_queries` returns for the query.
            indices: (P,) positions of the texts.

        Source:
            Khattab & Zaharia (2020), "ColBERT", eq. 3, for the sum of maxima.
        """
        ids, vectors = query
        weights = self.weights(ids)
        if not weights.any():
            return np.zeros(len(indices))
        return self.largest_cosines(vectors, indices) @ weights / weights.sum()

    def largest_cosines(self, vectors: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """Return max_j cos(q_i, d_j) (P, n) of the n vectors of a query and P texts; 0 for texts without tokens."""
        largest = np.zeros((len(indices), len(vectors)))
        filled = np.flatnonzero(self.lengths(indices))
        if len(filled):
            cosines, first = self._cosines(vectors, indices[filled])
            largest[filled] = np.maximum.reduceat(cosines, first, axis=0)
        return largest

    def matches(self, query: Tokens, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return for each of the n tokens of a query the nearest token of a text, counted from 0, and their cosine.

        Both are (n,). The text has at least one token.
        """
        cosines, _ = self._cosines(query[1], np.array([index]))
        return cosines.argmax(0), cosines.max(0)

    def lengths(self, indices: np.ndarray) -> np.ndarray:
        """Return the number of tokens (P,) of texts."""
        return self.starts[indices + 1] - self.starts[indices]

    def take(self, indices: np.ndarray) -> "TokenVectors":
        """Return a copy of the tokens of some texts, in this order, without any data of the others."""
        lengths = self.lengths(indices)
        tokens = _ranges(self.starts[indices], lengths)
        starts = np.append(0, lengths.cumsum())
        return TokenVectors.counted(self.projection, starts, self.ids[tokens], self.rows[tokens])

    @classmethod
    def join(cls, parts: list["TokenVectors"], indices: np.ndarray | None = None) -> "TokenVectors":
        """Return the N texts of several parts with the same projection.

        Args:
            parts: The parts. The list is emptied on the way, so that no vector is in memory three times.
            indices: (N,) the new index of each text; None to keep the order.
        """
        projection = parts[0].projection
        lengths = np.concatenate([np.diff(part.starts) for part in parts])
        indices = np.arange(len(lengths)) if indices is None else indices
        starts = np.append(0, lengths[np.argsort(indices)].cumsum())
        ids = np.empty(starts[-1], np.int32)
        rows = np.empty((starts[-1], parts[0].rows.shape[1]), np.int8)
        while parts:
            part = parts.pop()
            before = len(indices) - len(part)
            tokens = _ranges(starts[indices[before:]], np.diff(part.starts))
            indices = indices[:before]
            ids[tokens] = part.ids
            rows[tokens] = part.rows
        return cls.counted(projection, starts, ids, rows)

    def save(self, folder: Path) -> None:
        """Write the token vectors to a new folder."""
        folder.mkdir()
        np.save(folder / "starts.npy", self.starts)
        np.save(folder / "ids.npy", self.ids)
        np.save(folder / "rows.npy", self.rows)
        np.save(folder / "frequencies.npy", self.frequencies)
        np.save(folder / "center.npy", self.projection.center)
        np.save(folder / "directions.npy", self.projection.directions)

    @classmethod
    def load(cls, folder: Path) -> "TokenVectors":
        """Open what `save` wrote, memory-mapped.

        Raises:
            UsageError: The files are damaged.
        """
        names = ("center", "directions", "starts", "ids", "rows", "frequencies")
        mapped = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in names]
        center, directions, *arrays = map(np.asarray, mapped)  # slices of a memmap object are slow
        stored = cls(Projection(center, directions), *arrays)
        if not len(stored.ids) == len(stored.rows) == stored.starts[-1]:
            numbers = f"{len(stored.ids):,} token ids and {len(stored.rows):,} vectors of {stored.starts[-1]:,} tokens"
            raise UsageError(f"{folder} has {numbers}", fix="Build the index again.")
        return stored

    def _cosines(self, vectors: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return cosines (T, n) of all tokens of some texts and those of a query, and where each text starts (P,)."""
        blocks = [self.rows[self.starts[index] : self.starts[index + 1]] for index in indices]
        rows = np.concatenate(blocks).astype(np.float32)
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        cosines = rows @ vectors.T / np.maximum(norms, 1)[:, None]
        return cosines, np.append(0, self.lengths(indices).cumsum()[:-1])


@dataclass(frozen=True)
class Projection:
    """Map of token vectors to fewer dimensions.

    Attributes:
        center: (d,) mean of the unit vectors of the sample.
        directions: (d, k) leading directions of the centered sample.
    """

    center: np.ndarray
    directions: np.ndarray

    @classmethod
    def fit(cls, sample: np.ndarray, number: int = DIRECTIONS) -> "Projection":
        """Fit the projection on a number of directions to a sample of token vectors (n, d)."""
        sample = unit_rows(sample)
        center = sample.mean(0) if len(sample) else np.zeros(sample.shape[1], sample.dtype)
        return cls(center, leading_directions(sample - center, number))

    def apply(self, vectors: np.ndarray) -> np.ndarray:
        """Return unit vectors (n, k) float32 of token vectors (n, d)."""
        return unit_rows((unit_rows(vectors) - self.center) @ self.directions)


def leading_directions(vectors: np.ndarray, number: int) -> np.ndarray:
    """Return the directions (d, k) in which vectors (n, d) are largest."""
    _, directions = np.linalg.eigh(vectors.T @ vectors)  # ascending
    return directions[:, ::-1][:, :number].copy()


def without_context(ids: np.ndarray, means: np.ndarray) -> Tokens:
    """Return the tokens of a query that the texts of an index have, each with its mean vector in them.

    Args:
        ids: (n,) ids of the query's tokens.
        means: What `TokenVectors.means` returns.
    """
    ids = ids[ids < len(means)]
    ids = ids[means[ids].any(1)]
    return ids, means[ids].astype(np.float32)


def length_corrected_z_scores(scores: np.ndarray, lengths: np.ndarray, texts: int) -> np.ndarray:
    """Return z-scores (P,) of token scores, without half of their trend with the logarithm of the length.

    Args:
        scores: (P + B,) token scores of a query and P texts, then those of B background texts, which trend, mean and
            standard deviation come from.
        lengths: (P + B,) numbers of tokens.
        texts: P.
    """
    logs = np.log(np.maximum(lengths, 1))
    centered = logs[texts:] - logs[texts:].mean()
    slope = scores[texts:] @ centered / max(centered @ centered, LEAST_DEVIATION)
    rest = scores - TREND * slope * logs
    mean = rest[texts:].mean()
    deviation = rest[texts:].std()
    return (rest[:texts] - mean) / (deviation if deviation > LEAST_DEVIATION else 1)


def _ranges(first: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the numbers of several ranges, one after another, by their first numbers and lengths (n,)."""
    before = np.append(0, lengths.cumsum())
    return np.repeat(first - before[:-1], lengths) + np.arange(before[-1])


def _as_int8(vectors: np.ndarray) -> np.ndarray:
    """Return vectors (n, k), each scaled to a largest absolute value of 127 and rounded; zeros stay zeros."""
    largest = np.abs(vectors).max(1, keepdims=True)
    return np.rint(vectors * (127 / np.where(largest > 0, largest, 1))).astype(np.int8)
