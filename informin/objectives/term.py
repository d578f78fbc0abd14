"""The base class of terms, and what a term gets: two views of a batch, heads on the encoder, and a guide."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from informin.distributed import to_device
from informin.errors import UsageError
from informin.options import SHARED_FIELDS, check_fields, check_value, snake_case
from modeling_informin import HeadInputs

Value = TypeVar("Value")


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
    """A frozen encoder's embeddings of N sentences. `informin.training.guide.CachedGuide` is the implementation."""

    def lookup(self, indices: np.ndarray, device: torch.device) -> Tensor:
        """Return the unit vectors (B, d) float32 of the sentences with these indices (B,), on a device."""

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
        embedding1: Embeddings of the first view before the projection head, (B, d).
        embedding2: Embeddings of the second view before the projection head, (B, d).
        row: Indices of the training sentences, a NumPy array (B,) int64. None unless a term needs a guide.
        second_row: Indices of the second texts of pairs, (B,); otherwise those of `row`.
        general: Embeddings of K general sentences, (K, d). None unless a term replays them.
        general_row: Indices of the general sentences, a NumPy array (K,) int64.
        sentence_ids: Ids of the sentences, equal for equal sentences, (B,) int64; of pairs, those of the first texts.
        negatives: Which candidates from all W processes are negatives of each sentence, (B, W*B) bool: False for copies
            of the sentence, or of a text of its pair. None if all are.
        maps1: Attention maps of T layers in the first view, (B, T, H, L, L). None unless a term sets `reads_maps`.
        maps2: Attention maps of T layers in the second view, (B, T, H, L, L). If its tokens are at other places, in the
            order of the first view, with 0 for tokens that it lacks.
        heads: Outputs of the terms' heads, by `Term.head_name`.
        lm_losses: Cross-entropy at the M masked positions, (M,). None if no term masks tokens.
    """

    z1: Tensor
    z2: Tensor
    mask: Tensor
    embedding1: Tensor | None = None
    embedding2: Tensor | None = None
    row: np.ndarray | None = None
    second_row: np.ndarray | None = None
    general: Tensor | None = None
    general_row: np.ndarray | None = None
    sentence_ids: Tensor | None = None
    negatives: Tensor | None = None
    maps1: Tensor | None = None
    maps2: Tensor | None = None
    heads: dict[str, Any] = field(default_factory=dict)
    lm_losses: Tensor | None = None


class Head(nn.Module, ABC):
    """A module trained on top of the encoder for one term. Saved in checkpoints, but not in the exported model."""

    @abstractmethod
    def forward(self, model: nn.Module, inputs: HeadInputs) -> Any:
        """Compute the term's entry in `views.heads`. Called within the model's forward pass.

        Args:
            model: The whole model, with its encoder `base_model`, its projection head `project`, and `embed_with`.
            inputs: Embeddings, projections and tokens of the views.
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
class Term(ABC):
    """One term of the training loss: a weight, and a loss computed from two views of a batch.

    Subclass it as a dataclass, and implement `loss`. Everything else has a default:

        @dataclass
        class Norm(Term):
            '''Keeps the projections near unit length.'''

            weight: float = 0.1

            def loss(self, views):
                return (views.z1.norm(dim=-1) - 1).square().mean()

    Attributes:
        weight: Factor of the loss. A term with weight 0 is left out.
        name: Name in logs, as terms/NAME. Default: the name of the class in snake case.
        title: Name on model cards. Default: the name in words.
        paper: Paper to cite, as a file name in informin/templates/citations.
        head_name: Name of the term's head in `model.heads`. Default: the name of the term.
        reads_maps: Whether the term needs the attention maps of the layers in `map_layers`.
        reads_states: Whether the term's head needs the hidden states of all tokens.
        lm_head: Whether the term needs the encoder's pretrained language modeling head.
        reads_projections: Whether the loss has a gradient with respect to `views.z1` or `views.z2`. If no term of a
            run has one, DDP must look for weights without gradient in each step.
        reads_first_view: Whether the term reads the embedding or the projection of the first view. If no term of a run
            does, and the views differ in their tokens, only the second one is encoded.
        whole_weights: Whether each process needs all weights of the encoder, so that FSDP cannot shard them.
        compares_views: Whether the term compares the two views, and so learns nothing from identical ones.
        smallest_batch: Smallest number of sentences, over all processes, for which the loss is defined.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    head_name: ClassVar[str]
    paper: ClassVar[str | None] = None
    reads_maps: ClassVar[bool] = False
    reads_states: ClassVar[bool] = False
    lm_head: ClassVar[bool] = False
    reads_projections: ClassVar[bool] = True
    reads_first_view: ClassVar[bool] = True
    whole_weights: ClassVar[bool] = False
    compares_views: ClassVar[bool] = True
    smallest_batch: ClassVar[int] = 1

    weight: float = 1.0

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = snake_case(cls.__name__)
        if "title" not in vars(cls):
            cls.title = cls.name.replace("_", " ")
        if "head_name" not in vars(cls):
            cls.head_name = cls.name

    def __post_init__(self):
        check_fields(self, self.option_name)
        fits = 0 <= self.weight < math.inf
        check_value(fits, self.option_name("weight"), self.weight, "0 or more (0 turns the term off)")
        self.check()

    def check(self) -> None:  # noqa: B027, most terms need none
        """Validate the fields. Raise UsageError with `check_value` if a value is invalid."""

    @classmethod
    def option_name(cls, field_name: str) -> str:
        """Return the name of a field in messages, records and options of the command line.

        The name of the term precedes a field that several terms have, as in `reconstruction_weight`.
        """
        return f"{cls.name}_{field_name}" if field_name in SHARED_FIELDS else field_name

    def options(self) -> dict[str, Any]:
        """Return the fields that have an effect, by `option_name`."""
        return {self.option_name(declared.name): getattr(self, declared.name) for declared in fields(self)}

    @property
    def second_encoder(self) -> str | None:
        """The option that gives the term's head its own encoder for the first view, or None.

        Such a head calls `model.embed_with`. Each process needs all weights, so FSDP cannot shard them.
        """
        return None

    @property
    def masking(self) -> Masking | None:
        """How tokens must be masked, or None."""
        return None

    @property
    def reads_padding(self) -> bool:
        """Whether the term reads the attention maps of queries at padding, too, which are 0 without padded batches."""
        return False

    @property
    def guide_needs(self) -> GuideNeeds | None:
        """What the term needs from a guide, or None."""
        return None

    def map_layers(self, config) -> list[int]:
        """Return the layers, counted from 0, whose attention maps the term needs from an encoder with this config.

        A term with `reads_maps` overrides this method. If several terms of a run need attention maps, they must need
        the same layers.
        """
        return []

    def head(self, model: nn.Module) -> Head | None:
        """Return a newly initialized head, or None."""
        return None

    def prepare(self, guide: Guide) -> None:
        """Store the guide requested by `guide_needs`. Called once before the first step."""
        self._guide = guide

    def check_sentences(self, number: float) -> None:  # noqa: B027, most terms need none
        """Raise UsageError if a run on this number of sentences is too short for the term."""

    @abstractmethod
    def loss(self, views: Views) -> Tensor | dict[str, Tensor]:
        """Return the unweighted loss, a scalar.

        To log more values, return a dictionary with them, each one number. Its entry `name`, or else its first entry,
        is the loss. The others are logged as terms/NAME/ENTRY.
        """


def losses_of(term: Term, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the unweighted loss of a term, and its further values to log: scalars on the device of the loss.

    Raises:
        UsageError: The loss is not a tensor with one number, or a further value is not one number.
    """

    def check(fits: bool, value: Any, needed: str, place: str = "") -> None:
        if not fits:
            shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor | np.ndarray) else ""
            found = f"has the term {term.name}, whose `loss` returned a {type(value).__name__}{shape}{place}"
            raise UsageError(found, option="objective", needed=needed)

    found = term.loss(views)
    losses: Mapping[Any, Any] = found if isinstance(found, Mapping) else {term.name: found}
    name = term.name if term.name in losses else next(iter(losses), None)
    loss: Any = losses.get(name)
    fits = isinstance(loss, Tensor) and loss.numel() == 1
    check(fits, loss, "a tensor with one number, or a dictionary with such a loss first")
    others = {}
    for key, value in losses.items():
        if key != name:
            is_number = isinstance(value, Tensor | np.ndarray | np.generic | Real)
            number = torch.as_tensor(value) if is_number else torch.empty(0)
            check(number.numel() == 1, value, "one number, such as its mean", f" to log as {key}")
            others[key] = to_device(number.detach().reshape(()).float(), loss.device)
    return loss.reshape(()), others


def fill_heads(model: Any, terms: Sequence[Term]) -> None:
    """Replace `model.heads` by newly initialized heads of these terms.

    Raises:
        UsageError: A head is not a `Head`.
    """
    model.heads.clear()
    for term in terms:
        head = term.head(model)
        if head is None:
            continue
        if not isinstance(head, Head):
            found = f"has the term {term.name}, whose `head` returned a {type(head).__name__}"
            fix = "Derive it from informin.objectives.term.Head."
            raise UsageError(found, option="objective", needed="an informin.objectives.term.Head, or None", fix=fix)
        model.heads[term.head_name] = head


def embeddings_of_guide(guide: Guide, views: Views) -> tuple[Tensor, Tensor]:
    """Return the guide's embeddings of the texts of both views, (B, d) each; the same ones unless they are pairs."""
    first = guide.lookup(needed(views.row), views.z1.device)
    if views.second_row is None or views.second_row is views.row:
        return first, first
    return first, guide.lookup(views.second_row, views.z1.device)


def needed(value: Value | None) -> Value:
    """Return a value of `Views` that the term requested. Such a value is never None."""
    assert value is not None
    return value
