"""Span cropping: one view or both are contiguous spans of the sentence."""

from dataclasses import dataclass

import torch
from torch import Tensor

from informin.options import check_value, option
from informin.views.view import SentenceTokens, View

SPANS = ("second", "independent", "nearby")


def crop_span(tokens: Tensor, shortest: float, longest: float, generator: torch.Generator, least: int = 1) -> Tensor:
    """Return a random contiguous span whose length is a random fraction of N, from `shortest` to `longest`.

    The span has at least `least` tokens. All positions are equally likely.

    Source:
        Izacard et al. (2022), Contriever, section 3.1, "independent cropping".

    Example:
        >>> import torch
        >>> generator = torch.Generator().manual_seed(0)
        >>> crop_span(torch.arange(10), 0.3, 0.6, generator)
        tensor([3, 4, 5, 6])
    """
    fraction = shortest + (longest - shortest) * float(torch.rand((), generator=generator))
    length = _length(fraction, len(tokens), least)
    start = int(torch.randint(len(tokens) - length + 1, (), generator=generator))
    return tokens[start : start + length]


def nearby_spans(
    tokens: Tensor, shortest: float, longest: float, generator: torch.Generator, least: int = 1
) -> tuple[Tensor, Tensor]:
    """Return two random spans: the second one overlaps the first one, is next to it, or lies within it.

    Lengths are from `shortest` to `longest` of N. That of the first span follows Beta(4, 2), which prefers long spans,
    and that of the second one Beta(2, 4).

    Source:
        Giorgi et al. (2021), DeCLUTR, section 3.1, equations 1 to 5, with one anchor and one positive.

    Example:
        >>> import torch
        >>> generator = torch.Generator().manual_seed(0)
        >>> nearby_spans(torch.arange(20), 0.1, 0.5, generator)
        (tensor([5, 6, 7, 8, 9]), tensor([4, 5, 6, 7, 8]))
    """
    number = len(tokens)
    low, high = (_length(fraction, number, least) for fraction in (shortest, longest))
    # The k-th smallest of 5 uniform numbers follows Beta(k, 6 - k).
    long, short = (float(torch.rand(5, generator=generator).sort().values[place]) for place in (3, 1))
    length, other = (low + int(fraction * (high - low)) for fraction in (long, short))
    start = int(torch.randint(number - length + 1, (), generator=generator))
    first, last = max(0, start - other), min(start + length, number - other)
    second = first + int(torch.randint(last - first + 1, (), generator=generator))
    return tokens[start : start + length], tokens[second : second + other]


def _length(fraction: float, number: int, least: int) -> int:
    return min(max(least, round(fraction * number)), number)


def at_sentence_ends(span: Tensor, ends: list[int], number: int) -> Tensor:
    """Return a span of the places 0 to N - 1, moved to the nearest starts and ends of sentences.

    Args:
        span: Places without gaps.
        ends: Places after which a sentence ends.
        number: N.
    """
    starts = [0, *(end + 1 for end in ends if end + 1 < number)]
    start = min(starts, key=lambda one: abs(one - int(span[0])))
    stops = [one for one in (*starts[1:], number) if one > start]
    return torch.arange(start, min(stops, key=lambda one: abs(one - int(span[-1]) - 1)))


@dataclass
class Crop(View):
    """Keeps a random contiguous span of the tokens, in the second view or in both.

    `second` crops only the second view, and compares the span with the whole text. `independent` crops each view,
    as in Contriever. `nearby` draws the second span near the first one, as in DeCLUTR. Use the latter two for texts of
    several sentences, with a `max_seq_length` that fits them.

    With `sentence_ends`, spans start and end at sentences. A text of one sentence is cropped at any token. A sentence
    ends at a period, exclamation mark or question mark, even after an abbreviation.

    Fractions are relative to the text after truncation to `max_seq_length`. Contriever takes 0.05 to 0.5 of 256 tokens,
    and DeCLUTR 32 to 512 tokens of documents of 2,048.

    Source:
        Izacard et al. (2022), "Unsupervised Dense Information Retrieval with Contrastive Learning"; Giorgi et al.
        (2021), "DeCLUTR: Deep Contrastive Learning for Unsupervised Textual Representations"; González-Márquez et al.
        (2025), "Cropping outperforms dropout as an augmentation strategy for self-supervised training of text
        embeddings", arXiv 2508.03453.
    """

    title = "span cropping"
    keeps_tokens = True

    spans: str = option(
        "second",
        "Which views are spans: the `second`; both, drawn as `independent` spans; or both, the second span adjacent to "
        "the first one, overlapping or contained (`nearby`).",
        choices=SPANS,
    )
    min_fraction: float = option(0.5, "Minimum fraction of the tokens in a span.")
    max_fraction: float = option(1.0, "Maximum fraction of the tokens in a span.")
    min_tokens: int = option(1, "Minimum number of tokens in a span, if the sentence has as many.")
    sentence_ends: bool = option(False, "Move the start and the end of each span to the nearest ends of sentences.")

    def check(self) -> None:
        fits = 0 < self.max_fraction <= 1
        check_value(fits, "crop_max_fraction", self.max_fraction, "a fraction above 0, at most 1")
        fits = 0 < self.min_fraction <= self.max_fraction
        needed = f"above 0, at most `crop_max_fraction` ({self.max_fraction})"
        check_value(fits, "crop_min_fraction", self.min_fraction, needed)
        check_value(self.min_tokens >= 1, "crop_min_tokens", self.min_tokens, "1 or more")

    def change(self, tokens: Tensor, generator: torch.Generator) -> Tensor | tuple[Tensor, Tensor]:
        how = (self.min_fraction, self.max_fraction, generator, self.min_tokens)
        if self.spans == "nearby":
            return nearby_spans(tokens, *how)
        if self.spans == "independent":
            return crop_span(tokens, *how), crop_span(tokens, *how)
        return crop_span(tokens, *how)

    def change_words(
        self, words: Tensor, tokens: SentenceTokens, generator: torch.Generator
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the places of the spans, moved to sentence ends if asked for."""
        changed = super().change_words(words, tokens, generator)
        ends = tokens.sentence_ends(words) if self.sentence_ends else []
        if not ends:
            return changed
        if isinstance(changed, tuple):
            first, second = (at_sentence_ends(span, ends, len(words)) for span in changed)
            return first, second
        return at_sentence_ends(changed, ends, len(words))
