"""The base class of views, and the tokens that a view may change."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from informin.options import check_fields, snake_case


@dataclass(frozen=True)
class SentenceTokens:
    """Finds the tokens of a sentence that a view may change: all but special tokens at either end and the prompt.

    Attributes:
        tokenizer: The tokenizer of the rows.
        prompt: Prompt prepended to each sentence.
        longest: Maximum number of tokens in a row, as many as the encoder accepts; None for no limit.
    """

    tokenizer: PreTrainedTokenizerBase
    prompt: str = ""
    longest: int | None = None

    def split(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split a row (L,) without padding into its start, the tokens that may change, and its end."""
        start = 0
        end = len(ids)
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
        whole = set(self.tokenizer("a")["input_ids"])
        words = set(self.tokenizer("a", add_special_tokens=False)["input_ids"])
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
    """Base class of the ways to make the second view of a sentence.

    Subclass it as a dataclass, check its fields in `check`, and implement `change`. A view that needs more than one
    sentence at a time overrides `second_views`.

    Attributes:
        name: Name in records and of options. Default: the name of the class in snake case.
        title: Name in messages. Default: the name in words.
        same_tokens: Whether both views have the same tokens, so that only dropout makes them differ.
        keeps_tokens: Whether `change` selects and repeats tokens by their place, and never reads them. Then attention
            maps of both views can be compared at the tokens that they share.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    same_tokens: ClassVar[bool] = False
    keeps_tokens: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = snake_case(cls.__name__)
        if "title" not in vars(cls):
            cls.title = cls.name.replace("_", " ")

    def __post_init__(self):
        check_fields(self, self.option_name)
        self.check()

    @classmethod
    def option_name(cls, field_name: str) -> str:
        """Return the name of a field in messages, records and options of the command line, as in `repetition_rate`."""
        return f"{cls.name}_{field_name}"

    def options(self) -> dict[str, Any]:
        """Return the fields by `option_name`."""
        return {self.option_name(declared.name): getattr(self, declared.name) for declared in fields(self)}

    def check(self) -> None:  # noqa: B027, a view may have no fields
        """Raise UsageError for a field that is out of range; see `check_value`."""

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
        rows: list[list[int]] = []
        places: list[list[int]] = []
        for ids, mask in zip(batch["input_ids"].cpu(), batch["attention_mask"].cpu()):
            ids = ids[mask.bool()]
            start, words, end = tokens.split(ids)
            room = None if tokens.longest is None else tokens.longest - len(start) - len(end)
            given = torch.arange(len(words)) if self.keeps_tokens else words
            changed = self.change(given, generator)[:room] if len(words) else given
            if self.keeps_tokens:
                place = torch.arange(len(ids))
                kept = torch.cat([place[: len(start)], changed + len(start), place[len(start) + len(words) :]])
                places.append(kept.tolist())
                rows.append(ids[kept].tolist())
            else:
                rows.append(torch.cat([start, changed, end]).tolist())
        return SecondView(rows, places=places or None)
