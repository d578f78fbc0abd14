"""Copies of a text in an index: only the first one is compared with queries, and the others follow it in a result.

So copies have equal scores and are ordered by row, whatever the rounding of sums, and many copies of a text do not
displace other candidates.
"""

from collections.abc import Sequence

import numpy as np


class Copies:
    """Which of N texts are equal.

    Attributes:
        first: (M,) places of the first copy of each of M different texts, ascending.
    """

    def __init__(self, texts: Sequence[str]):
        first_of: dict[str, int] = {}
        firsts = np.array([first_of.setdefault(text, place) for place, text in enumerate(texts)], int)
        self.first = np.array(list(first_of.values()), int)
        self._numbers = np.bincount(firsts, minlength=len(firsts))  # of copies, at the place of the first one
        self._ends = np.cumsum(self._numbers)
        self._places = np.argsort(firsts, kind="stable")  # those of the copies of a text follow each other

    def of(self, first: int) -> np.ndarray:
        """Return the places of all copies of a text, ascending."""
        end = self._ends[first]
        return self._places[end - self._numbers[first] : end]
