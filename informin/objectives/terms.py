"""What a term of a loss is, what it is computed from, and what an objective is: a sum of terms."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from torch import Tensor, nn

from informin.errors import UsageError
from informin.guide.protocol import Guide, GuideNeeds


@dataclass
class Views:
    """What one step computed of B sentences of L tokens, read twice. d hidden size.

    Attributes:
        z1, z2: (B, d), the two views: the projection, or the embedding itself where the model has no projection head.
        mask: (B, L), 1 at tokens, 0 at padding.
        embedding1, embedding2: (B, d), below the projection head.
        row1, row2: (B,) int64, which of the training sentences each view is of; None unless a term needs a guide.
        general, general_row: (K, d) and (K,), embeddings of general sentences, and which they are; None likewise.
        same: (B, M) int64, for each sentence the ids of those that are no negatives of it: its own, and where its other
            view is a neighbor, that one's and those of the further mutual neighbors. Equal sentences have one id.
        false_negatives: (B, W*B) bool, which candidates of all W processes are false negatives of an anchor, or None.
        maps1, maps2: (B, T, H, L, L), the attention maps of T layers; None unless a term `reads_maps`.
        heads: what the terms' heads gave, by the name of the term.
        lm_losses: (M,), the cross entropy at the masked positions; None where no term masks.
    """

    z1: Tensor
    z2: Tensor
    mask: Tensor
    embedding1: Tensor | None = None
    embedding2: Tensor | None = None
    row1: Tensor | None = None
    row2: Tensor | None = None
    general: Tensor | None = None
    general_row: Tensor | None = None
    same: Tensor | None = None
    false_negatives: Tensor | None = None
    maps1: Tensor | None = None
    maps2: Tensor | None = None
    heads: dict[str, Any] = field(default_factory=dict)
    lm_losses: Tensor | None = None


class Head(nn.Module, ABC):
    """A module that a term trains on top of the encoder: part of checkpoints, not of the exported model."""

    @abstractmethod
    def forward(
        self,
        model: nn.Module,
        projection: Tensor,
        input_ids: Tensor,
        attention_mask: Tensor,
        sentence_ids: Tensor,
        gather: Callable[[Tensor], Tensor],
    ) -> Any:
        """What the term reads as `views.heads[name]`, computed in the model's own forward pass.

        Args:
            model: the whole model, with `base_model`, the encoder, and `project`, its projection head.
            projection: (2B, d), of view 1, then view 2.
            input_ids, attention_mask: (2B, L).
            sentence_ids: (B,) int64, equal for equal sentences.
            gather: joins the rows (B, ...) of all processes, with gradient.
        """

    def after_step(self, model: nn.Module) -> None:
        """Called after each optimizer step; for heads with a state of their own."""


@dataclass(frozen=True)
class Masking:
    """Tokens to be masked: their share; the two views themselves, or a further copy of each sentence."""

    probability: float
    of_views: bool


@dataclass
class Term:
    """One summand of a loss, or a part of the model that one needs: a dataclass of its own options.

    A subclass has its options as fields, made by `option`, checks them in `check`, and computes `loss`.

    Attributes:
        name: in the log, and of its head in `model.heads`.
        title: in cards.
        weight: the option that turns it on when above 0; None for a term that always counts 1.
        paper: where it is from, the name of a file in informin/publishing/templates/citations.
        summand: whether it has a loss of its own.
        reads_maps: it needs attention maps, of the layers `map_layers`.
        lm_head: it needs the encoder's pretrained language-model head.
        follows_weights: its head follows the encoder's weights, which have to be whole in every process.
        views_differ: it compares two views, and learns nothing where they are the same.
        smallest_batch: the fewest sentences, over all processes, that its loss is defined for.
        fixed: options that shape its head, which a run keeps when it is resumed.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    weight: ClassVar[str | None] = None
    paper: ClassVar[str | None] = None
    summand: ClassVar[bool] = True
    reads_maps: ClassVar[bool] = False
    lm_head: ClassVar[bool] = False
    follows_weights: ClassVar[bool] = False
    views_differ: ClassVar[bool] = True
    smallest_batch: ClassVar[int] = 1
    fixed: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self):
        for own in fields(self):
            value = getattr(self, own.name)
            choices = own.metadata.get("choices", (value,))
            require(value in choices, own.name, value, f"one of: {', '.join(map(str, choices))}")
        if self.weight is not None:
            require(0 <= self.strength < math.inf, self.weight, self.strength, "0 or more (0 turns the term off)")
        self.check()

    def check(self) -> None:
        """Raises UsageError for an option that cannot be; see `require`."""

    @property
    def strength(self) -> float:
        """The weight in the sum."""
        return 1.0 if self.weight is None else getattr(self, self.weight)

    @property
    def masking(self) -> Masking | None:
        """What it has masked."""
        return None

    @property
    def guide_needs(self) -> GuideNeeds | None:
        """What it needs from a guide, or None."""
        return None

    def map_layers(self, config) -> list[int]:
        """The layers, from 0, whose attention maps it reads of an encoder with this configuration."""
        return []

    def head(self, model: nn.Module) -> Head | None:
        """Its head, fresh."""
        return None

    def prepare(self, guide: Guide) -> None:
        """Called once before the first step with the guide that `guide_needs` asks for."""

    def require_sentences(self, number: float) -> None:
        """Raises UsageError where a run reads too few sentences for it."""

    def add_to(self, views: Views) -> None:
        """Called in each step before any loss: puts into the views what other terms read."""

    def loss(self, views: Views) -> dict[str, Tensor]:
        """Its value under `name`, unweighted; further entries are logged beside it."""
        return {}


def option(default, help: str, choices: tuple[str, ...] | None = None):
    """A field of a term: its default, its line in --help, and the values that it can have."""
    return field(default=default, metadata={"help": help} | ({"choices": choices} if choices else {}))


def require(fits: bool, name: str, value: object, needed: str) -> None:
    """Raises UsageError unless the value of an option fits; `needed` says in words what does."""
    if not fits:
        shown = " ".join(map(str, value)) if isinstance(value, list) else value
        raise UsageError(f"`{name}` is {shown}; needed {needed}.")


def fill_heads(model: nn.Module, terms: tuple[Term, ...]) -> None:
    """Puts the fresh heads of the terms into `model.heads`; those of another training leave it."""
    model.heads.clear()
    for term in terms:
        head = term.head(model)
        if head is not None:
            model.heads[term.name] = head


@dataclass(frozen=True)
class PaperRow:
    """Published values for one encoder: the batch over all processes, the learning rate, other options by name."""

    name: str
    batch_size: int
    learning_rate: float
    options: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Objective:
    """A named sum of terms.

    Attributes:
        title: in cards.
        terms: those that its options can turn on, in the order in which they are added up.
        rows: published values by architecture and width; the base rows, of width 768, stand for encoders without one.
        projection_head: the paper's, mlp or none.
        max_seq_length: the papers' 32 tokens; None for a length that fits the sentences.
    """

    title: str
    terms: tuple[type[Term], ...]
    rows: dict[tuple[str, int], PaperRow] = field(default_factory=dict)
    projection_head: str = "mlp"
    max_seq_length: int | None = 32

    def row(self, architecture: str, width: int) -> PaperRow | None:
        """The values for an encoder: its own row, else its architecture's base row, else BERT-base's."""
        keys = [(architecture, width), (architecture, 768), ("bert", 768)]
        return next((self.rows[key] for key in keys if key in self.rows), None)

    @property
    def defaults(self) -> dict:
        """Its options by BERT-base's row."""
        row = self.row("bert", 768)
        return row.options if row else {}
