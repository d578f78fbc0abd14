"""Span cropping: the second view is a contiguous span of the sentence."""

from dataclasses import dataclass

import torch
from torch import Tensor

from informin.options import check_value, option
from informin.views.view import View


def crop_span(tokens: Tensor, shortest: float, longest: float, generator: torch.Generator) -> Tensor:
    """Return a random contiguous span whose length is a random fraction of N, from `shortest` to `longest`.

    The span has at least one token. All positions are equally likely.

    Source:
        Izacard et al. (2022), Contriever, section 3.1, "independent cropping", here of one view; Giorgi et al. (2021),
        DeCLUTR, section 3.1, whose span lengths follow a beta distribution.
    """
    fraction = shortest + (longest - shortest) * float(torch.rand((), generator=generator))
    length = min(max(1, round(fraction * len(tokens))), len(tokens))
    start = int(torch.randint(len(tokens) - length + 1, (), generator=generator))
    return tokens[start : start + length]


@dataclass
class Crop(View):
    """Keeps a random contiguous span of the tokens.

    Source:
        Izacard et al. (2022), "Unsupervised Dense Information Retrieval with Contrastive Learning"; Giorgi et al.
        (2021), "DeCLUTR: Deep Contrastive Learning for Unsupervised Textual Representations".
    """

    name = "crop"
    title = "span cropping"
    keeps_tokens = True

    min_fraction: float = option(0.5, "Minimum fraction of the tokens in the span that the second view keeps.")
    max_fraction: float = option(1.0, "Maximum fraction of the tokens in the span that the second view keeps.")

    def check(self) -> None:
        fits = 0 < self.max_fraction <= 1
        check_value(fits, "crop_max_fraction", self.max_fraction, "a fraction above 0, at most 1")
        fits = 0 < self.min_fraction <= self.max_fraction
        needed = f"above 0, at most `crop_max_fraction` ({self.max_fraction})"
        check_value(fits, "crop_min_fraction", self.min_fraction, needed)

    def change(self, tokens: Tensor, generator: torch.Generator) -> Tensor:
        return crop_span(tokens, self.min_fraction, self.max_fraction, generator)
