"""A view from outside the package with its own option, in one file. Importing the file registers it.

See test_own_view.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from informin.objectives.terms import option, require
from informin.views import VIEWS, View


@dataclass
class Deletion(View):
    """Deletes random tokens, but never all of them."""

    title = "word deletion"

    deletion_rate: float = option(0.1, "Probability of each token to be left out of the second view.")

    def check(self) -> None:
        require(0 <= self.deletion_rate < 1, "deletion_rate", self.deletion_rate, "0 or more, and below 1")

    def change(self, tokens: Tensor, generator: torch.Generator) -> Tensor:
        kept = torch.rand(len(tokens), generator=generator) >= self.deletion_rate
        return tokens[kept] if kept.any() else tokens[:1]


VIEWS["deletion"] = Deletion
