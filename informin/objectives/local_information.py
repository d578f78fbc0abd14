"""Local information: the embedding predicts which n-grams belong to its sentence (IS-BERT)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from informin.distributed import gather_with_gradient, own_places, part_of_mean
from informin.objectives.numerics import in_float32
from informin.objectives.term import Head, Term, Views
from informin.options import check_value, option
from modeling_informin import HeadInputs


@in_float32
def local_information(features: Tensor, h: Tensor, mask: Tensor, negatives: Tensor | None = None) -> Tensor:
    r"""Negative mutual information (Jensen-Shannon) of embeddings and the n-grams of their sentences.

    Use it to train on unlabeled texts without views of a sentence and without a projection head, such as long texts.
    On semantic similarity, `contrast` is ahead.

    Also known as the local-global loss of Deep InfoMax.

        loss = mean_neg (softplus(s) - log 2) - mean_pos (log 2 - softplus(-s)),   s = c_t . h_k

    Positive pairs combine the n-gram features c_t of a sentence with its own embedding. Negative pairs combine them
    with the embeddings of the other sentences in the batch. The constants come from the authors' code, and make the
    loss 0 at s = 0.

    With several processes, the embeddings are gathered with gradient, and the means are those of all processes.

    Args:
        features: N-gram features of the tokens, (B, L, d). Any floating-point type; computed in float32.
        h: Embeddings, (B, d).
        mask: 1 for tokens, 0 for padding, (B, L).
        negatives: Which candidates are negatives, (B, W*B) bool; None for all other sentences.

    Returns:
        The loss, a scalar.

    Source:
        Zhang et al. (2020), IS-BERT, eq. 2 and 3; Hjelm et al. (2019), Deep InfoMax.

    Example:
        >>> import torch
        >>> features = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
        >>> local_information(features, torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.ones(2, 1))
        tensor(-0.5662)
    """
    candidates = gather_with_gradient(h.float())  # (W*B, d)
    scores = features.float() @ candidates.T  # (B, L, W*B)
    own = torch.arange(len(candidates), device=h.device) == own_places(h)[:, None]  # (B, W*B)
    others = ~own if negatives is None else negatives & ~own
    positive = mask.float()[..., None] * own[:, None]  # (B, L, W*B)
    negative = mask.float()[..., None] * others[:, None]
    of_negatives = part_of_mean(((softplus(scores) - math.log(2)) * negative).sum(), negative.sum())
    return of_negatives - part_of_mean(((math.log(2) - softplus(-scores)) * positive).sum(), positive.sum())


class Convolutions(Head):
    """N-gram features: one convolution of the hidden states for each size, with ReLU.

    Source:
        Zhang et al. (2020), IS-BERT, eq. 1. The authors' code has no ReLU.
    """

    def __init__(self, model: Any, sizes: Sequence[int]):
        super().__init__()
        width = model.base_model.config.hidden_size  # of the states; a Dense module gives embeddings another dimension
        dimensions = torch.arange(model.config.hidden_size)
        widths = [len(part) for part in dimensions.tensor_split(len(sizes))]
        self.layers = nn.ModuleList(
            nn.Conv1d(width, part, size, padding=size // 2) for part, size in zip(widths, sizes)
        )
        self.to(model.device)

    def forward(self, model, inputs: HeadInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Return the features (B, L, d), the embeddings (B, d) and the mask (B, L) of the second view."""
        size = len(inputs.sentence_ids)
        mask = inputs.attention_mask[-size:]
        assert inputs.states is not None
        states = inputs.states[-size:].masked_fill(mask[..., None] == 0, 0).transpose(1, 2)  # (B, d, L)
        features = torch.cat([layer(states) for layer in self.layers], dim=1).transpose(1, 2).relu()
        return features, inputs.embedding[-size:], mask


@dataclass
class LocalInformation(Term):
    """Mutual information of embeddings and n-gram features. See `local_information`.

    The embedding is that of the encoder, which is exported. In IS-BERT, it is the mean of the n-gram features, and the
    convolutions are part of the exported model.
    """

    paper = "isbert"
    reads_states = True
    reads_projections = False
    reads_first_view = False
    compares_views = False
    smallest_batch = 2  # one negative

    weight: float = option(1.0, "Weight of local information, IS-BERT's loss.")
    ngram_sizes: list[int] | None = option(
        None, "Sizes of the n-grams of local information, odd numbers. Default: 1 3 5."
    )

    def check(self) -> None:
        sizes = (1, 3, 5) if self.ngram_sizes is None else self.ngram_sizes
        fits = len(sizes) > 0 and all(size > 0 and size % 2 for size in sizes)
        check_value(fits, "ngram_sizes", self.ngram_sizes, "odd numbers, 1 or more")
        self._sizes = sizes

    def head(self, model: Any) -> Convolutions:
        return Convolutions(model, self._sizes)

    def loss(self, views: Views) -> Tensor:
        features, embeddings, mask = views.heads[self.head_name]
        return local_information(features, embeddings, mask, views.negatives)
