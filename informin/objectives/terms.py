"""Base classes of the objectives, weighted sums of terms computed from two views of a batch, and their guides."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Protocol

from torch import Tensor, nn

from informin.errors import UsageError


@dataclass(frozen=True)
class GuideNeeds:
    """What a term needs from a guide.

    Attributes:
        sentences: The sentences whose embeddings it uses: those of the training data, or the general sentences of the
            replay.
        same_dimension: Whether the guide's embeddings must have the dimension of the trained encoder's.
        neighbors: Number of nearest neighbors per sentence.
        neighbors_option: Name of the option that sets this number.
    """

    sentences: Literal["training", "general"] = "training"
    same_dimension: bool = False
    neighbors: int = 0
    neighbors_option: str | None = None


class Guide(Protocol):
    """A frozen encoder's embeddings of N sentences. `informin.guide.cache.CachedGuide` is the implementation."""

    def lookup(self, indices: Tensor) -> Tensor:
        """Return the unit vectors (B, d) float32 of the sentences with these indices (B,), on the same device."""

    def quantile(self, fraction: float) -> float:
        """Return the cosine that this fraction of all pairs of different sentences exceeds."""

    def neighborhood_means(self, k: int) -> "Guide":
        """Return a guide whose embeddings are means over each sentence and its k nearest neighbors."""


@dataclass
class Views:
    """Everything that terms can use in one training step: B sentences of L tokens, encoded twice; hidden size d.

    Attributes:
        z1: Projections of the first view, (B, d). Equal to `embedding1` if the model has no projection head.
        z2: Projections of the second view, (B, d).
        mask: Attention mask, (B, L): 1 for tokens, 0 for padding. With attention maps, 1 only for tokens that both
            views share.
        embedding1: Embeddings of the first view below the projection head, (B, d).
        embedding2: Embeddings of the second view below the projection head, (B, d).
        row: Indices of the training sentences, (B,) int64. None unless a term needs a guide.
        general: Embeddings of K general sentences, (K, d). None unless a term replays them.
        general_row: Indices of the general sentences, (K,) int64.
        sentence_ids: Ids of the sentences, equal for equal sentences, (B,) int64. A copy is no negative.
        negative_weights: Weight of each candidate from all W processes as a negative of each sentence, (B, W*B); 0
            leaves it out, such as a copy of the sentence. None if all have weight 1.
        maps1: Attention maps of T layers in the first view, (B, T, H, L, L). None unless a term sets `reads_maps`.
        maps2: Attention maps of T layers in the second view, (B, T, H, L, L). If its tokens are at other places, in the
            order of the first view, with 0 for tokens that it lacks.
        heads: Outputs of the terms' heads, by term name.
        lm_losses: Cross-entropy at the M masked positions, (M,). None if no term masks tokens.
    """

    z1: Tensor
    z2: Tensor
    mask: Tensor
    embedding1: Tensor | None = None
    embedding2: Tensor | None = None
    row: Tensor | None = None
    general: Tensor | None = None
    general_row: Tensor | None = None
    sentence_ids: Tensor | None = None
    negative_weights: Tensor | None = None
    maps1: Tensor | None = None
    maps2: Tensor | None = None
    heads: dict[str, Any] = field(default_factory=dict)
    lm_losses: Tensor | None = None


class Head(nn.Module, ABC):
    """A module trained on top of the encoder for one term. Saved in checkpoints, but not in the exported model."""

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
        """Compute the term's entry in `views.heads`. Called within the model's forward pass.

        Args:
            model: The whole model, with its encoder `base_model` and its projection head `project`.
            projection: Projections of view 1 followed by view 2, (2B, d).
            input_ids: Token ids of view 1 followed by view 2, (2B, L).
            attention_mask: Their attention mask, (2B, L).
            sentence_ids: Ids of the sentences, (B,) int64. Equal sentences have equal ids.
            gather: Concatenates tensors (B, ...) from all processes, with gradient.
        """

    def after_step(self, model: nn.Module) -> None:
        """Update the head's own state. Called after each optimizer step."""


@dataclass(frozen=True)
class Masking:
    """The masking that a term requires.

    Attributes:
        probability: Probability that a token is masked.
        of_views: Whether to mask the two views themselves, or a third copy of each sentence.
    """

    probability: float
    of_views: bool


@dataclass
class Term:
    """One term of a loss, or a part of the model that another term needs.

    Subclass it as a dataclass: declare the term's options as fields with `option`, validate them in `check`, and
    compute the value in `loss`.

    Attributes:
        name: Name in logs, and of the term's head in `model.heads`.
        title: Name on model cards.
        weight: Option that holds the term's weight; 0 turns the term off. None for a term that always has weight 1.
        paper: Paper to cite, as a file name in informin/publishing/templates/citations.
        summand: Whether the term adds a value to the loss.
        reads_maps: Whether the term needs the attention maps of the layers in `map_layers`.
        lm_head: Whether the term needs the encoder's pretrained language modeling head.
        follows_weights: Whether the head copies the encoder's weights, so that each process must hold all of them.
        views_differ: Whether the term learns nothing from two identical views.
        smallest_batch: Smallest number of sentences, over all processes, for which the loss is defined.
        fixed: Options that determine the shape of the head and cannot change when a run resumes.
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
        for declared in fields(self):
            value = getattr(self, declared.name)
            choices = declared.metadata.get("choices", (value,))
            check_value(value in choices, declared.name, value, f"one of: {', '.join(map(str, choices))}")
        if self.weight is not None:
            check_value(0 <= self.strength < math.inf, self.weight, self.strength, "0 or more (0 turns the term off)")
        self.check()

    def check(self) -> None:
        """Validate the options. Raise UsageError with `check_value` if a value is invalid."""

    @property
    def strength(self) -> float:
        """Return the term's weight in the loss."""
        return 1.0 if self.weight is None else getattr(self, self.weight)

    @property
    def masking(self) -> Masking | None:
        """Return how tokens must be masked, or None."""
        return None

    @property
    def guide_needs(self) -> GuideNeeds | None:
        """Return what the term needs from a guide, or None."""
        return None

    def map_layers(self, config) -> list[int]:
        """Return the layers, counted from 0, whose attention maps the term needs from an encoder with this config."""
        return []

    def head(self, model: nn.Module) -> Head | None:
        """Return a newly initialized head, or None."""
        return None

    def prepare(self, guide: Guide) -> None:
        """Store the guide requested by `guide_needs`. Called once before the first step."""

    def check_sentences(self, number: float) -> None:
        """Raise UsageError if a run on this number of sentences is too short for the term."""

    def add_to(self, views: Views) -> None:
        """Add to the views what other terms use. Called in each step before any loss is computed."""

    def loss(self, views: Views) -> dict[str, Tensor]:
        """Return the unweighted value under the key `name`, and further values to log under other keys."""
        return {}


def option(default, help: str, choices: Collection[str] | None = None) -> Any:
    """Declare an option as a dataclass field.

    Args:
        default: Default value.
        help: Help text, one sentence.
        choices: Allowed values; None allows any.
    """
    return field(default=default, metadata={"help": help} | ({"choices": choices} if choices else {}))


def check_value(fits: bool, name: str, value: object, needed: str) -> None:
    """Raise UsageError for an option's value unless it `fits`.

    Args:
        fits: Whether the value is valid.
        name: Name of the option.
        value: The value that was given.
        needed: Description of valid values, such as "a number above 0".
    """
    if not fits:
        shown = " ".join(map(str, value)) if isinstance(value, list) else value
        raise UsageError(f"is {shown}", option=name, needed=needed)


def needed(value: Tensor | None) -> Tensor:
    """Return a value of `Views` that the term requested. Such a value is never None."""
    assert value is not None
    return value


def fill_heads(model: Any, terms: tuple[Term, ...]) -> None:
    """Replace `model.heads` by newly initialized heads of these terms."""
    model.heads.clear()
    for term in terms:
        head = term.head(model)
        if head is not None:
            model.heads[term.name] = head


@dataclass(frozen=True)
class PaperRow:
    """A paper's published hyperparameters for one encoder.

    Attributes:
        name: Where the paper reports them.
        batch_size: Batch size over all processes.
        learning_rate: Learning rate.
        options: Values of other options, by name.
    """

    name: str
    batch_size: int
    learning_rate: float
    options: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Objective:
    """A named, weighted sum of terms.

    Attributes:
        title: Name on model cards.
        terms: Terms that the objective's options can turn on, in the order of summation.
        rows: Published hyperparameters by architecture and hidden size. Encoders without an entry use the one for
            hidden size 768.
        projection_head: Projection head used in the paper, `mlp` or `none`.
        max_seq_length: Maximum number of tokens, 32 in the papers. None chooses a length that fits the sentences.
    """

    title: str
    terms: tuple[type[Term], ...]
    rows: dict[tuple[str, int], PaperRow] = field(default_factory=dict)
    projection_head: str = "mlp"
    max_seq_length: int | None = 32

    def row(self, architecture: str, width: int) -> PaperRow | None:
        """Return the hyperparameters for an encoder: its own, else its architecture's at size 768, else BERT-base's."""
        keys = [(architecture, width), (architecture, 768), ("bert", 768)]
        return next((self.rows[key] for key in keys if key in self.rows), None)

    @property
    def defaults(self) -> dict:
        """Return the published options for BERT-base."""
        row = self.row("bert", 768)
        return row.options if row else {}
