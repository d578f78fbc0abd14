"""The base class of views, and the tokens that a view may change."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class SentenceTokens:
    """Finds the tokens of a sentence that a view may change: all but special tokens at either end and the prompt.

    Attributes:
        tokenizer: The tokenizer of the rows.
        prompt: Text before every sentence.
        longest: Maximum number of tokens in a row, as many as the encoder accepts; None for no limit.
    """

    tokenizer: PreTrainedTokenizerBase
    prompt: str = ""
    longest: int | None = None

    def split(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split a row (L,) without padding into its start, the tokens that may change, and its end."""
        start, end = 0, len(ids)
        while start < end and int(ids[start]) in self._special:
            start += 1
        while start < end and int(ids[end - 1]) in self._special:
            end -= 1
        prompt = self.tokenizer(self.prompt.rstrip(), add_special_tokens=False)["input_ids"] if self.prompt else []
        start = min(start + len(prompt), end)
        return ids[:start], ids[start:end], ids[end:]

    @cached_property
    def _special(self) -> set[int | None]:
        """Tokens that mark the ends of a row. Some tokenizers append another than their end of sentence."""
        whole, words = (set(self.tokenizer("a", add_special_tokens=adds)["input_ids"]) for adds in (True, False))
        names = ("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id")
        return {getattr(self.tokenizer, name) for name in names} | (whole - words)  # not [UNK] and [MASK]: words


@dataclass(frozen=True)
class SecondView:
    """The second views of a batch of B sentences.

    Attributes:
        tokens: B rows of token ids, without padding. Their lengths may differ from those of the first views.
        places: For each token, its place among the tokens of the first view, which also starts at 0; None if the tokens
            are not those of the first view.
    """

    tokens: Sequence[Sequence[int]]
    places: Sequence[Sequence[int]] | None = None


@dataclass
class View(ABC):
    """Base class of the ways to make the second view of a sentence: a dataclass of its options.

    A subclass declares its options as fields, made by `informin.objectives.terms.option`, checks them in `check`, and
    implements `change`. A view that needs more than one sentence at a time overrides `second_views`.

    Attributes:
        title: Name in messages.
        same_tokens: Whether both views have the same tokens, so that only dropout makes them differ.
        keeps_tokens: Whether `change` selects and repeats tokens by their place, whatever they are. Then attention maps
            of both views can be compared at the tokens that they share.
    """

    title: ClassVar[str]
    same_tokens: ClassVar[bool] = False
    keeps_tokens: ClassVar[bool] = False

    def __post_init__(self):
        self.check()

    def check(self) -> None:  # noqa: B027, a view may have no options
        """Raise UsageError for an option that is out of range; see `check_value`."""

    @abstractmethod
    def change(self, tokens: Tensor, generator: torch.Generator) -> Tensor:
        """Return the tokens (M,) of the second view of one sentence.

        Args:
            tokens: (N,) int64 on the CPU, N >= 1, without special tokens and prompt.
            generator: Source of all randomness, seeded by the run's seed, the step and the process.
        """

    def second_views(self, batch: dict[str, Tensor], tokens: SentenceTokens, seed: int) -> SecondView:
        """Return the second views of a batch; by default, `change` applied to each sentence.

        Args:
            batch: `input_ids` and `attention_mask`, (B, L).
            tokens: Finds the tokens that may change.
            seed: Depends on the run's seed, the step and the process.
        """
        generator = torch.Generator().manual_seed(seed)
        rows, places = [], []
        for ids, mask in zip(batch["input_ids"].cpu(), batch["attention_mask"].cpu()):
            ids = ids[mask.bool()]
            start, words, end = tokens.split(ids)
            number, first = len(words), len(start)
            room = None if tokens.longest is None else tokens.longest - first - len(end)
            if self.keeps_tokens:
                kept = torch.arange(number)
                kept = (self.change(kept, generator) if number else kept)[:room] + first
                places.append([*range(first), *kept.tolist(), *range(first + number, len(ids))])
                rows.append(ids[places[-1]].tolist())
            else:
                words = self.change(words, generator) if number else words
                rows.append([*start.tolist(), *words[:room].tolist(), *end.tolist()])
        return SecondView(rows, places=places or None)


def join_rows(first: Tensor, second: Tensor, value: int, side: str) -> Tensor:
    """Concatenate rows (N, L) and (M, K) to (N + M, max(L, K)), padded with a value on the side `left` or `right`."""
    length = max(first.shape[1], second.shape[1])
    missing = [length - rows.shape[1] for rows in (first, second)]
    sides = [(0, number) if side == "right" else (number, 0) for number in missing]
    return torch.cat([pad(rows, at, value=value) for rows, at in zip((first, second), sides)])
