"""The words of texts, as stems without stop words, and their BM25 scores."""

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import Stemmer
from scipy.sparse import csc_array, csr_array

from informin.errors import UsageError

# With stop words in bm25s and stems in PyStemmer.
LANGUAGES = tuple(
    "danish dutch english french german italian norwegian portuguese russian spanish swedish turkish".split()
)
WORD_WEIGHT = 0.25  # of words beside vectors; selected in experiments/search_system.py
OTHER = "other"  # a language without stop words and stems
logging.getLogger("bm25s").setLevel(logging.WARNING)


class Words:
    """BM25 weights of the words of N texts.

    Args:
        bm25: The weights, by word and text.
        language: See `Words.build`.
    """

    def __init__(self, bm25: Any, language: str):
        self.bm25, self.language = bm25, language

    @classmethod
    def build(cls, texts: Sequence[str], language: str) -> "Words":
        """Weight the words of texts.

        Args:
            texts: N texts.
            language: Language of stop words and stems: one of `LANGUAGES`, or `other` for none.

        Raises:
            UsageError: There are no texts, or the language is another one.
        """
        if not texts:
            raise UsageError("An index needs at least one text")
        if language not in (*LANGUAGES, OTHER):
            raise UsageError(f"is {language!r}", option="language", needed=f"one of: {', '.join((*LANGUAGES, OTHER))}")
        import bm25s  # not at the top: where jax is installed, it takes most of a GPU's memory

        words = cls(bm25s.BM25(), language)
        words.bm25.index(words.split(texts), create_empty_token=False, show_progress=False)
        return words

    @classmethod
    def load(cls, folder: str | Path, language: str) -> "Words":
        """Open the weights that `save` wrote, memory-mapped."""
        import bm25s

        return cls(bm25s.BM25.load(folder, mmap=True), language)

    def save(self, folder: str | Path) -> None:
        """Write the weights to a folder."""
        self.bm25.save(folder, show_progress=False)

    def split(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the words of each text that are compared."""
        import bm25s

        stemmer = None if self.language == OTHER else Stemmer.Stemmer(self.language)
        stop = None if self.language == OTHER else self.language
        return bm25s.tokenize(list(texts), stopwords=stop, stemmer=stemmer, return_ids=False, show_progress=False)

    def scores(self, queries: Sequence[str]) -> np.ndarray:
        """Return the BM25 scores (Q, N) float32 of queries and texts."""
        scores = np.zeros((len(queries), self.bm25.scores["num_docs"]), np.float32)
        for row, words in zip(scores, self.split(queries)):
            if columns := self.bm25.get_tokens_ids(words):
                row[:] = self.bm25.get_scores_from_ids(columns)
        return scores

    def weights(self) -> csr_array:
        """Return the BM25 weights (N, V) of the V different words in each text."""
        parts = self.bm25.scores
        shape = (parts["num_docs"], len(parts["indptr"]) - 1)
        return csc_array((parts["data"], parts["indices"], parts["indptr"]), shape=shape).tocsr()

    def counts(self, queries: Sequence[str]) -> csr_array:
        """Return how often each word of the texts is in each query (Q, V). Times `weights`, they are the scores."""
        counted = [Counter(self.bm25.get_tokens_ids(words)) for words in self.split(queries)]
        ends = np.cumsum([0, *map(len, counted)])
        columns = [column for count in counted for column in count]
        values = np.array([number for count in counted for number in count.values()], np.float32)
        return csr_array((values, columns, ends), shape=(len(queries), len(self.bm25.scores["indptr"]) - 1))


def z_scores(scores: np.ndarray) -> np.ndarray:
    """Return scores (Q, N) minus their mean over the N texts, in standard deviations."""
    return (scores - scores.mean(1, keepdims=True)) / spread(scores)


def spread(scores: np.ndarray) -> np.ndarray:
    """Return the standard deviation (Q, 1) of scores (Q, N), or 1 where they are all equal."""
    deviation = scores.std(1, keepdims=True)
    return np.where(deviation > 0, deviation, 1)
