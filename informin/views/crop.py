"""Span cropping: the second view is a contiguous span of the sentence."""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from informin.objectives.terms import check_value, option
from informin.views.view import SecondView, SentenceTokens, View


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


def crop_words(
    tokens: Tensor, fewest: int, most: int, tokenizer: PreTrainedTokenizerBase, generator: torch.Generator
) -> Tensor:
    """Return the tokens of `fewest` to `most` consecutive words, however long the text is; of all if it has fewer.

    Words are separated by spaces. All positions and numbers of words are equally likely.

    Args:
        tokens: (N,) int64, without special tokens.
    """
    words = str(tokenizer.decode(tokens.tolist())).split()
    number = min(int(torch.randint(fewest, most + 1, (), generator=generator)), len(words))
    if number == len(words):
        return tokens
    start = int(torch.randint(len(words) - number + 1, (), generator=generator))
    ids = tokenizer(" ".join(words[start : start + number]), add_special_tokens=False)["input_ids"]
    return torch.tensor(ids, dtype=tokens.dtype)


@dataclass
class Crop(View):
    """Keeps a random contiguous span of the tokens: a fraction of them, or a number of words.

    Source:
        Izacard et al. (2022), "Unsupervised Dense Information Retrieval with Contrastive Learning"; Giorgi et al.
        (2021), "DeCLUTR: Deep Contrastive Learning for Unsupervised Textual Representations".
    """

    title = "span cropping"

    crop_min_fraction: float = option(0.5, "Minimum fraction of the tokens in the span that the second view keeps.")
    crop_max_fraction: float = option(1.0, "Maximum fraction of the tokens in the span that the second view keeps.")

    crop_words: Optional[list[int]] = option(
        None,
        "Minimum and maximum number of words in the span, whatever the length of the text, instead of fractions of its "
        "tokens. 5 20 turns documents into the length of queries.",
    )

    @property
    def keeps_tokens(self) -> bool:
        return self.crop_words is None  # words are tokenized again

    def check(self) -> None:
        if self.crop_words is not None:
            words, needed = self.crop_words, "two numbers of words, 1 or more, the smaller one first"
            check_value(len(words) == 2 and 1 <= words[0] <= words[1], "crop_words", words, needed)
        least, most = self.crop_min_fraction, self.crop_max_fraction
        check_value(0 < most <= 1, "crop_max_fraction", most, "a fraction above 0, at most 1")
        check_value(0 < least <= most, "crop_min_fraction", least, f"above 0, at most `crop_max_fraction` ({most})")

    def second_views(self, batch: dict[str, Tensor], tokens: SentenceTokens, seed: int) -> SecondView:
        self._tokenizer = tokens.tokenizer
        return super().second_views(batch, tokens, seed)

    def change(self, tokens: Tensor, generator: torch.Generator) -> Tensor:
        if self.crop_words is not None:
            fewest, most = self.crop_words
            return crop_words(tokens, fewest, most, self._tokenizer, generator)
        return crop_span(tokens, self.crop_min_fraction, self.crop_max_fraction, generator)
