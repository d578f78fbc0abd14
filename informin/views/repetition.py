"""Word repetition: the second view repeats some of the tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from informin.options import check_value, option
from informin.views.view import View


def repeat_tokens(tokens: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """Repeat a random number of random tokens once: 0 to max(2, int(rate * N)) of N, all numbers equally likely.

    Source:
        Wu et al. (2022), ESimCSE, eq. 2 and 3.
    """
    most = min(max(2, int(rate * len(tokens))), len(tokens))
    number = int(torch.randint(most + 1, (), generator=generator))
    times = torch.ones(len(tokens), dtype=torch.int64)
    times[torch.randperm(len(tokens), generator=generator)[:number]] = 2
    return tokens.repeat_interleave(times)


@dataclass
class Repetition(View):
    """Repeats random tokens, so that the length of a sentence does not give away its second view.

    Source:
        Wu et al. (2022), "ESimCSE: Enhanced Sample Building Method for Contrastive Learning of Unsupervised Sentence
        Embedding", section 3.1.
    """

    title = "word repetition"
    keeps_tokens = True

    rate: float = option(0.32, "Maximum fraction of the tokens that the second view repeats, at least two tokens.")

    def check(self) -> None:
        check_value(0 <= self.rate <= 1, "repetition_rate", self.rate, "a fraction from 0 to 1")

    def change(self, tokens: Tensor, generator: torch.Generator) -> Tensor:
        return repeat_tokens(tokens, self.rate, generator)
