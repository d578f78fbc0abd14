"""Augmentations of ConSERT and CLEAR, one for each view: shuffled tokens, cutoffs, deletion and reordering."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from informin.options import check_value, option
from informin.views.deletion import delete_tokens
from informin.views.view import View

# Each with the options that it reads.
AUGMENTATIONS: dict[str, tuple[str, ...]] = {
    "none": (),
    "shuffle": (),
    "token_cutoff": ("token_cutoff",),
    "feature_cutoff": ("feature_cutoff",),
    "deletion": ("deletion",),
    "span_deletion": ("spans", "span_fraction"),
    "reordering": ("spans", "span_fraction"),
}


def delete_spans(tokens: Tensor, spans: int, fraction: float, generator: torch.Generator) -> Tensor:
    """Delete random spans of a fraction of N tokens each, which may overlap; if nothing is left, keep a random token.

    Source:
        Wu et al. (2020), CLEAR, section 3: span deletion.
    """
    kept = torch.ones(len(tokens), dtype=torch.bool)
    length = max(1, int(fraction * len(tokens)))
    for start in torch.randint(len(tokens) - length + 1, (spans,), generator=generator).tolist():
        kept[start : start + length] = False
    one = int(torch.randint(len(tokens), (), generator=generator))
    if not kept.any():
        kept[one] = True
    return tokens[kept]


def swap_spans(tokens: Tensor, spans: int, fraction: float, generator: torch.Generator) -> Tensor:
    """Swap random pairs of spans of a fraction of N tokens each, one pair after the other.

    Source:
        Wu et al. (2020), CLEAR, section 3: reordering.

    Example:
        >>> import torch
        >>> swap_spans(torch.arange(8), 1, 0.25, torch.Generator().manual_seed(0))
        tensor([0, 1, 2, 3, 6, 7, 4, 5])
    """
    length = max(1, int(fraction * len(tokens)))
    rest = len(tokens) - 2 * length  # tokens that are in neither span
    for _ in range(spans if rest >= 0 else 0):
        first, second = torch.randint(rest + 1, (2,), generator=generator).sort().values.tolist()
        second += length
        parts = tokens[:first], tokens[second : second + length], tokens[first + length : second]
        tokens = torch.cat([*parts, tokens[first : first + length], tokens[second + length :]])
    return tokens


@dataclass
class Augment(View):
    """Applies one augmentation to the first view and another one to the second view.

    - `shuffle`: put the tokens in random order. For an encoder with positions, this equals ConSERT's shuffled position
      ids. Special tokens and the prompt keep their places.
    - `token_cutoff`, `feature_cutoff`: set rows or columns of the output of the embedding layer to 0. Only
      `feature_cutoff` changes special tokens and the prompt, too.
    - `deletion`, `span_deletion`, `reordering`: as in CLEAR, without its [DEL] tokens.

    The defaults are those of ConSERT's best unsupervised model, which is trained without dropout.

    Source:
        Yan et al. (2021), "ConSERT: A Contrastive Framework for Self-Supervised Sentence Representation Transfer",
        section 3.2; Wu et al. (2020), "CLEAR: Contrastive Learning for Sentence Representation".

    Example:
        >>> from informin.views import Augment
        >>> Augment(first="none", second="token_cutoff").options()
        {'augment_first': 'none', 'augment_second': 'token_cutoff', 'augment_token_cutoff': 0.15}
    """

    title = "augmentations of both views"
    keeps_tokens = True

    first: str = option("feature_cutoff", "Augmentation of the first view.", choices=tuple(AUGMENTATIONS))
    second: str = option("shuffle", "Augmentation of the second view.", choices=tuple(AUGMENTATIONS))
    token_cutoff: float = option(0.15, "Fraction of the tokens whose embeddings token_cutoff sets to 0.")
    feature_cutoff: float = option(0.2, "Fraction of the dimensions of the token embeddings that are set to 0.")
    deletion: float = option(0.7, "Probability that the augmentation deletion deletes a token.")
    spans: int = option(5, "Number of spans that span_deletion deletes, or of pairs that reordering swaps.")
    span_fraction: float = option(0.05, "Fraction of the tokens in each of these spans.")

    def check(self) -> None:
        changes = {self.first, self.second} != {"none"}
        check_value(changes, "augment_second", self.second, "an augmentation of one view at least")
        for name in ("token_cutoff", "feature_cutoff", "deletion"):
            value = getattr(self, name)
            check_value(0 <= value < 1, f"augment_{name}", value, "0 or more, and below 1")
        check_value(self.spans >= 1, "augment_spans", self.spans, "1 or more")
        fits = 0 < self.span_fraction <= 0.5
        check_value(fits, "augment_span_fraction", self.span_fraction, "a fraction above 0, at most 0.5")

    def options(self) -> dict[str, Any]:
        used = {"first", "second", *AUGMENTATIONS[self.first], *AUGMENTATIONS[self.second]}
        names = {self.option_name(name) for name in used}
        return {name: value for name, value in super().options().items() if name in names}

    @property
    def scales_embeddings(self) -> bool:
        return bool({self.first, self.second} & {"token_cutoff", "feature_cutoff"})

    def change(self, tokens: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        first, second = (self._changed(tokens, kind, generator) for kind in (self.first, self.second))
        return first, second

    def _changed(self, tokens: Tensor, kind: str, generator: torch.Generator) -> Tensor:
        if kind == "shuffle":
            return tokens[torch.randperm(len(tokens), generator=generator)]
        if kind == "deletion":
            return delete_tokens(tokens, self.deletion, generator)
        if kind in ("span_deletion", "reordering"):
            change = delete_spans if kind == "span_deletion" else swap_spans
            return change(tokens, self.spans, self.span_fraction, generator)
        return tokens

    def factors(self, is_word: Tensor, width: int, view: int, generator: torch.Generator) -> Tensor | None:
        """Return 0 for the tokens or features that are cut off, and 1 for the others; see `View.factors`."""
        kind = (self.first, self.second)[view]
        if kind == "token_cutoff":
            places = is_word.nonzero()[:, 0]
            chosen = torch.randperm(len(places), generator=generator)[: int(self.token_cutoff * len(places))]
            return torch.ones(len(is_word), 1).index_fill(0, places[chosen], 0.0)
        if kind == "feature_cutoff":
            chosen = torch.randperm(width, generator=generator)[: int(self.feature_cutoff * width)]
            return torch.ones(1, width).index_fill(1, chosen, 0.0)
        return None
