"""Token deletion: the second view lacks random tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from informin.options import check_value, option
from informin.views.view import View


def delete_tokens(tokens: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """Delete each of N tokens with a probability, in order; if none is left, keep a random one.

    Source:
        Wang et al. (2021), TSDAE, section 3.1.
    """
    kept = torch.rand(len(tokens), generator=generator) > rate
    one = int(torch.randint(len(tokens), (), generator=generator))
    if not kept.any():
        kept[one] = True
    return tokens[kept]


@dataclass
class Deletion(View):
    """Deletes random tokens.

    Source:
        Wang et al. (2021), "TSDAE: Using Transformer-based Sequential Denoising Auto-Encoder for Unsupervised Sentence
        Embedding Learning"; Wu et al. (2020), "CLEAR: Contrastive Learning for Sentence Representation".
    """

    title = "token deletion"
    keeps_tokens = True

    rate: float = option(0.6, "Probability that a token of the second view is deleted.")

    def check(self) -> None:
        check_value(0 <= self.rate < 1, "deletion_rate", self.rate, "0 or more, and below 1")

    def change(self, tokens: Tensor, generator: torch.Generator) -> Tensor:
        return delete_tokens(tokens, self.rate, generator)
