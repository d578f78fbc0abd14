"""What a term of a loss is, and what it is computed from."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

from torch import Tensor


@dataclass
class Views:
    """What one step computed of B sentences of L tokens, read twice. d hidden size, W processes.

    Attributes:
        z1, z2: (B, d), the two views: the projection, or [CLS] itself where the model has no projection head.
        tokens1, tokens2: (B, L, d), the last hidden states.
        mask: (B, L), 1 at tokens, 0 at padding.
        maps1, maps2: (B, T, H, L, L), the attention maps of T layers; None unless a term `reads_maps`.
        features1, features2: (W*B, D), the projector's output for the batch of all processes; None without it.
        queue: (Q, d), embeddings of earlier batches, zeros where there is none yet; None without it.
        same: (B, Q) bool, where the queue holds a sentence itself; None without a queue.
        mlm_logits, mlm_labels: (M, V) and (M,) at the masked positions; None without MLM.
    """

    z1: Tensor
    z2: Tensor
    tokens1: Tensor
    tokens2: Tensor
    mask: Tensor
    maps1: Tensor | None = None
    maps2: Tensor | None = None
    features1: Tensor | None = None
    features2: Tensor | None = None
    queue: Tensor | None = None
    same: Tensor | None = None
    mlm_logits: Tensor | None = None
    mlm_labels: Tensor | None = None


@dataclass(frozen=True)
class Term:
    """One summand of a loss, or a part of the model that one needs.

    Attributes:
        name: in the log.
        weight: the option that turns it on when above 0; None for a term that always counts 1.
        loss: from the views and the term's own options (as attributes) to the value under `name`; further entries are
            logged beside it. None where the part has no loss of its own.
        options: what it reads beside its weight. An option that nothing reads is refused.
        title: in cards; None for its name.
        paper: where it is from, the name of a file in model_cards/citations.
        heads: from the options to what it needs in `config.informin`; see `modeling_informin.InforMinMixin`.
        reads_maps: it needs attention maps, of the layers that the option `ami_layers` names.
    """

    name: str
    weight: str | None = None
    loss: Callable[[Views, SimpleNamespace], dict[str, Tensor]] | None = None
    options: tuple[str, ...] = ()
    title: str | None = None
    paper: str | None = None
    heads: Callable[[SimpleNamespace], dict] = lambda options: {}
    reads_maps: bool = False


@dataclass(frozen=True)
class Objective:
    """A named sum of terms.

    Attributes:
        title: in cards.
        terms: those that its options can turn on.
        defaults: of options, where they are not those of the options themselves: the paper's values for BERT-base.
        projection_head: the paper's.
    """

    title: str
    terms: tuple[Term, ...]
    defaults: dict
    projection_head: str = "mlp"
