"""Contrastive tension (CT): two encoders agree on the same sentence, and disagree on different ones."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from informin.distributed import gather_with_gradient, own_places, part_of_mean
from informin.objectives.contrast import contrast
from informin.objectives.numerics import in_float32
from informin.objectives.term import Head, Term, Views, needed
from informin.options import check_value, option
from informin.views.encoder import copy_with_dropout
from modeling_informin import HeadInputs

FORMS = ("paper", "in_batch")
TEMPERATURE = 0.05  # of the form in_batch, as in sentence-transformers


@in_float32
def contrastive_tension(h1: Tensor, h2: Tensor, number: int = 7, negatives: Tensor | None = None) -> Tensor:
    r"""Contrastive tension: binary cross-entropy of dot products between the embeddings of two encoders.

    Use it to train an encoder whose last layers are far from sentence embeddings, on unlabeled sentences and without a
    projection head or dropout. `contrast` is usually better, and does not need a second encoder.

        loss = mean over pairs of  -log sigma(h1_i . h2_i)  and  -log(1 - sigma(h1_i . h2_k)),  k = i + 1, ..., i + K

    where k continues with the first sentence after the last one of the batch. Each sentence forms one positive pair,
    and is the first sentence of K negative pairs. In the paper, each negative pair has two separate sentences. Here,
    all pairs share the sentences of the batch, so that a pair costs only a dot product.

    With several processes, h2 is gathered with gradient, and the batch is that of all processes.

    Args:
        h1: Embeddings by the second encoder, (N, d). Any floating-point type; computed in float32.
        h2: Embeddings by the trained encoder, which is exported, (N, d).
        number: K, at most the number of other sentences in the batch.
        negatives: False for pairs that are left out, such as copies of a sentence, (N, W*N) bool.

    Returns:
        The mean over the pairs of all processes, a scalar.

    Source:
        Carlsson et al. (2021), CT, section 3; with 7 negatives, as in the paper.

    Example:
        >>> import torch
        >>> h1 = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
        >>> h2 = torch.tensor([[1.0, 0.0], [-1.0, 1.0]])
        >>> contrastive_tension(h1, h2, number=1)
        tensor(0.2685)
    """
    h1, candidates = h1.float(), gather_with_gradient(h2.float())  # (N, d), (W*N, d)
    offsets = torch.arange(min(number + 1, len(candidates)), device=h1.device)
    partners = (own_places(h1)[:, None] + offsets) % len(candidates)  # (N, K + 1), the first is the sentence itself
    dots = (h1 @ candidates.T).gather(1, partners)
    labels = (offsets == 0).float().expand_as(dots)
    weights = torch.ones_like(dots) if negatives is None else labels + (1 - labels) * negatives.gather(1, partners)
    total = binary_cross_entropy_with_logits(dots, labels, weights, reduction="sum")
    return part_of_mean(total, weights.sum())


class SecondEncoder(Head):
    """A second encoder, which starts with the same weights. It is also trained, but not exported.

    Source:
        Carlsson et al. (2021), CT, section 3.
    """

    def __init__(self, model: Any):
        super().__init__()
        self.encoder = copy_with_dropout(model.base_model)

    def forward(self, model, inputs: HeadInputs) -> Tensor:
        """Return the embeddings (B, d) of the first view."""
        size = len(inputs.sentence_ids)
        return model.embed_with(self.encoder, inputs.input_ids[:size], inputs.attention_mask[:size])


@dataclass
class ContrastiveTension(Term):
    """Contrastive tension between the trained encoder and a second one. See `contrastive_tension`.

    The form `in_batch` is that of sentence-transformers: `contrast` in both directions, with cosines and all sentences
    of the batch as negatives. Its temperature stays at 0.05, while sentence-transformers starts at 0.05 and trains it.

    The model that is exported encodes the second sentence of each pair, as in sentence-transformers. The authors' code
    keeps the better of both encoders on labeled pairs. It also trains without dropout: set `view_dropout` to 0.
    """

    paper = "ct"
    reads_projections = False
    compares_views = False
    smallest_batch = 2  # one negative

    weight: float = option(1.0, "Weight of contrastive tension.")
    form: str = option(
        "paper",
        "Form of contrastive tension: `paper`, with dot products, or `in_batch` as in sentence-transformers, with "
        "cosines and all sentences of the batch as negatives.",
        choices=FORMS,
    )
    tension_negatives: int = option(7, "Negatives per sentence in contrastive tension, in the form `paper`.")

    def check(self) -> None:
        check_value(self.tension_negatives >= 1, "tension_negatives", self.tension_negatives, "1 or more")

    def options(self) -> dict[str, Any]:
        unused = () if self.form == "paper" else ("tension_negatives",)
        return {name: value for name, value in super().options().items() if name not in unused}

    @property
    def second_encoder(self) -> str:
        return self.option_name("weight")

    def head(self, model: Any) -> SecondEncoder:
        return SecondEncoder(model)

    def loss(self, views: Views) -> Tensor:
        h1, h2 = views.heads[self.head_name], needed(views.embedding2)
        if self.form == "paper":
            return contrastive_tension(h1, h2, self.tension_negatives, views.negatives)
        first = contrast(h1, h2, TEMPERATURE, negative_weights=views.negatives)
        second = contrast(h2, h1, TEMPERATURE, negative_weights=views.negatives)
        return (first + second) / 2
