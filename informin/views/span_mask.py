"""Span masking: one [MASK] replaces a random span of the second view."""

from dataclasses import dataclass

import torch
from torch import Tensor

from informin.options import check_value, option
from informin.views.view import MASK, View

SHORTEST = 7  # tokens of a text that is masked; about the 30 characters of the authors' code


def mask_span(tokens: Tensor, length: int, generator: torch.Generator) -> Tensor:
    """Replace a random span of `length` tokens by one `MASK`. All positions are equally likely.

    A text of fewer than 7 tokens, or of no more than `length`, stays as it is.

    Source:
        Liu et al. (2021), Mirror-BERT, section 2: random span masking.

    Example:
        >>> import torch
        >>> mask_span(torch.arange(10, 20), 2, torch.Generator().manual_seed(0))
        tensor([10, 11, 12, 13, 14, 15, 16, 17, -1])
    """
    if len(tokens) < max(SHORTEST, length + 1):
        return tokens
    start = int(torch.randint(len(tokens) - length + 1, (), generator=generator))
    return torch.cat([tokens[:start], tokens.new_tensor([MASK]), tokens[start + length :]])


@dataclass
class SpanMask(View):
    """Masks a random span of the second view. Dropout changes both views.

    Use it for short texts, such as titles and sentences, instead of dropout alone. Both views keep nearly the same
    words.

    The paper replaces 5 characters of a text by [MASK], and its code does not mask texts of fewer than 30 characters.
    Here, a span consists of tokens, 2 by default, so that no word is split differently.

    Source:
        Liu et al. (2021), "Fast, Effective, and Self-Supervised: Transforming Masked Language Models into Universal
        Lexical and Sentence Encoders".
    """

    title = "span masking"
    keeps_tokens = True
    masks_tokens = True

    length: int = option(2, "Number of tokens that one mask token replaces in the second view.")

    def check(self) -> None:
        check_value(self.length >= 1, "span_mask_length", self.length, "1 or more")

    def change(self, tokens: Tensor, generator: torch.Generator) -> Tensor:
        return mask_span(tokens, self.length, generator)
