"""The second look of an index, in a test collection."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from informin.evaluation.tokens import CANDIDATES, Tokens, TokenVectors


@dataclass(frozen=True)
class SecondLook:
    """Tokens of the documents and queries of a collection.

    Attributes:
        documents: Token vectors of the D documents.
        queries: Ids and projected vectors of the tokens of each of Q queries.
    """

    documents: TokenVectors
    queries: Sequence[Tokens]

    def reordered(self, query: int, ranked: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Return a ranking (K,) of documents whose first ones are in the order of their scores after a second look.

        Args:
            query: Number of the query.
            ranked: (K,) indices of documents, best first; -1 comes last where there are fewer.
            scores: (D,) sums of z-scores of vectors and words.
        """
        first = ranked[:CANDIDATES]
        first = first[first >= 0]
        if not len(first):
            return ranked
        _, added = self.documents.second_look(self.queries[query], first)
        order = np.argsort(-(scores[first] + added), kind="stable")
        return np.concatenate([first[order], ranked[len(first) :]])
