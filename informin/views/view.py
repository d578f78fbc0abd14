"""The base class of views, the rows that it returns, and the tokens that a view may change."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from informin.options import check_fields, snake_case

SENTENCE_ENDS = ".!?\u2026\u3002\uff01\uff1f\u061f\u06d4\u0964"  # also of Chinese, Japanese, Arabic, Urdu, Hindi
PARTS = "\u2581#"  # signs by which tokenizers mark the start or the inside of a word
MASK = -1  # stands for [MASK] among the tokens that `View.change` returns


@dataclass(frozen=True)
class SentenceTokens:
    """Finds the tokens of a sentence that a view may change: all but special tokens at either end and the prompt.

    Attributes:
        tokenizer: The tokenizer of the rows.
        prompt: Prompt prepended to each sentence.
        longest: Maximum number of tokens in a row, as many as the encoder accepts; None for no limit.
        width: Dimension of the output of the embedding layer; 0 without one.
    """

    tokenizer: PreTrainedTokenizerBase
    prompt: str = ""
    longest: int | None = None
    width: int = 0

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

    def sentence_ends(self, words: Tensor) -> list[int]:
        """Return the places after which a sentence ends among tokens (N,), without N - 1."""
        return [place for place, token in enumerate(words[:-1].tolist()) if token in self._ends]

    @cached_property
    def _ends(self) -> set[int]:
        """Tokens that end a sentence. They are decoded, because a vocabulary may consist of bytes, as that of GPT-2."""
        numbers = list(self.tokenizer.get_vocab().values())
        decoded = self.tokenizer.backend_tokenizer.decode_batch([[number] for number in numbers])
        plain = {number: text.strip().strip(PARTS) for number, text in zip(numbers, decoded)}
        return {number for number, text in plain.items() if text and set(text) <= set(SENTENCE_ENDS)}

    @cached_property
    def _special(self) -> set[int | None]:
        """Tokens that mark the ends of a row. Some tokenizers append another than their end of sentence."""
        whole = set(self.tokenizer("a")["input_ids"])
        words = set(self.tokenizer("a", add_special_tokens=False)["input_ids"])
        names = ("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id")
        return {getattr(self.tokenizer, name) for name in names} | (whole - words)  # not [UNK] and [MASK]: words


@dataclass(frozen=True)
class ViewRows:
    """One view of a batch of B sentences.

    Attributes:
        tokens: B rows of token ids, without padding.
        places: For each token, its place in the row of the sentence, which starts at 0; -1 for a token that the
            sentence does not have. None if the tokens are not those of the sentence.
        factors: Factors of the embedding layer's output for each row, (L, 1), (1, d) or (L, d). None changes nothing.
    """

    tokens: Sequence[Sequence[int]]
    places: Sequence[Sequence[int]] | None = None
    factors: Sequence[Tensor | None] | None = None


@dataclass
class View(ABC):
    """Base class for the ways to make two views of a sentence.

    Subclass it as a dataclass, check its fields in `check`, and implement `change`. A view that reads more than one
    sentence at a time, or more columns, overrides `both_views`.

    Attributes:
        name: Name in records and of options. Default: the name of the class in snake case.
        title: Name in messages. Default: the name in words.
        columns: Default names of the columns of texts, if a sentence has several texts. The tokens of each further text
            are in a batch as `NAME_input_ids` and `NAME_attention_mask`. Empty for one text.
        same_tokens: Whether both views have the same tokens, so that only dropout makes them differ.
        keeps_tokens: Whether `change` selects and repeats tokens by their place, and never reads them. It then gets and
            returns places, and attention maps of both views can be compared at the tokens that they share.
        masks_tokens: Whether `change` returns `MASK`, so that the tokenizer needs a mask token.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    columns: ClassVar[tuple[str, ...]] = ()
    same_tokens: ClassVar[bool] = False
    keeps_tokens: ClassVar[bool] = False
    masks_tokens: ClassVar[bool] = False

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
        """Return the fields that have an effect, by `option_name`."""
        return {self.option_name(declared.name): getattr(self, declared.name) for declared in fields(self)}

    @property
    def scales_embeddings(self) -> bool:
        """Whether `factors` multiply the output of the embedding layer."""
        return False

    def factors(self, is_word: Tensor, width: int, view: int, generator: torch.Generator) -> Tensor | None:
        """Return what multiplies the output of the embedding layer in one view of a sentence.

        Heads that encode the first view again, such as a queue, encode it without factors.

        Args:
            is_word: (L,) bool, False for special tokens and the prompt.
            width: Dimension d of the output.
            view: 0 for the first view, 1 for the second one.
            generator: See `change`.

        Returns:
            (L, 1), (1, d) or (L, d) float32; None for 1.
        """
        return None

    def check(self) -> None:  # noqa: B027, a view may have no fields
        """Raise UsageError for a field that is out of range; see `check_value`."""

    @abstractmethod
    def change(self, tokens: Tensor, generator: torch.Generator) -> Tensor | tuple[Tensor, Tensor]:
        """Return the tokens (M,) of the second view of one sentence, or those of both views.

        Args:
            tokens: (N,) int64 on the CPU, N >= 1, without special tokens and prompt. With `keeps_tokens`, their places
                0 to N - 1.
            generator: Source of all randomness, seeded by the seed of the run, the step, its batch and the process.
        """

    def change_words(
        self, words: Tensor, tokens: SentenceTokens, generator: torch.Generator
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return what `change` returns for the tokens (N,) of a sentence. Override it to use the tokenizer."""
        return self.change(torch.arange(len(words)) if self.keeps_tokens else words, generator)

    def both_views(
        self, batch: dict[str, Tensor], tokens: SentenceTokens, seed: int
    ) -> tuple[ViewRows | None, ViewRows]:
        """Return both views of a batch, None for first views that are the sentences themselves.

        By default, `change` is applied to each sentence.

        Args:
            batch: `input_ids` and `attention_mask`, (B, L), and those of further `columns`.
            tokens: Finds the tokens that may change.
            seed: Depends on the run's seed, the step, the batch of the step and the process.
        """
        generator = torch.Generator().manual_seed(seed)
        pairs = []
        changes_both = self.scales_embeddings
        for ids, mask in zip(batch["input_ids"].cpu(), batch["attention_mask"].cpu()):
            ids = ids[mask.bool()]
            start, words, end = tokens.split(ids)
            given = torch.arange(len(words)) if self.keeps_tokens else words
            changed = self.change_words(words, tokens, generator) if len(words) else given
            changes_both |= isinstance(changed, tuple)
            pair = changed if isinstance(changed, tuple) else (given, changed)
            rows = []
            for number, view in enumerate(pair):
                row, places = self._row(start, words, end, view, tokens)
                factors = None
                if self.scales_embeddings:
                    is_word = torch.arange(len(row)) >= len(start)
                    is_word[len(row) - len(end) :] = False
                    factors = self.factors(is_word, tokens.width, number, generator)
                rows.append((row, places, factors))
            pairs.append(rows)
        first, second = (self._rows(rows) for rows in zip(*pairs))
        return first if changes_both else None, second

    def _row(
        self, start: Tensor, words: Tensor, end: Tensor, changed: Tensor, tokens: SentenceTokens
    ) -> tuple[list[int], list[int]]:
        """Return the token ids of one view, as many as the encoder accepts, and their places in the sentence."""
        room = None if tokens.longest is None else tokens.longest - len(start) - len(end)
        changed = changed[:room]
        places: list[int] = []
        if self.keeps_tokens:
            kept = torch.where(changed == MASK, MASK, changed + len(start))
            last = len(start) + len(words)
            places = [*range(len(start)), *kept.tolist(), *range(last, last + len(end))]
            changed = torch.where(changed == MASK, MASK, words[changed.clamp(min=0)]) if len(words) else changed
        if self.masks_tokens:
            changed = changed.masked_fill(changed == MASK, tokens.tokenizer.mask_token_id)
        return torch.cat([start, changed, end]).tolist(), places

    def _rows(self, rows: Sequence[tuple[list[int], list[int], Tensor | None]]) -> ViewRows:
        ids, places, factors = zip(*rows)
        return ViewRows(ids, places if self.keeps_tokens else None, factors if self.scales_embeddings else None)
