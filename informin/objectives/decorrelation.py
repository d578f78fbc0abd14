"""Self-contrastive decorrelation (SCD): training without negatives."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, cosine_similarity

from informin.errors import UsageError
from informin.objectives.numerics import in_float32
from informin.objectives.term import Head, Term, Views
from informin.options import check_value, option
from modeling_informin import HeadInputs

SELF_CONTRAST_FORMS = ("paper", "code")


def self_contrast(h1: Tensor, h2: Tensor, form: str = "paper") -> Tensor:
    r"""Self-contrastive loss of SCD: push the two views of a sentence apart.

    Use it only together with `decorrelation` or `contrast`, which keep the views related; alone it destroys the
    embeddings. In SCD, the two views have different dropout rates (`view_dropout`).

        loss = mean_i cos(h1_i, h2_i)

    The form `paper` is this mean. The form `code` is what the authors' code computes: the mean divided by 0.05,
    the temperature of the SimCSE code it is based on. It is 20 times stronger at the same weights.

    Args:
        h1: Embeddings with the low dropout rate, (N, d). Any floating-point type; computed in float32.
        h2: Embeddings with the high dropout rate, (N, d).
        form: `paper` or `code`.

    Returns:
        The mean over the local sentences, a scalar. The cosine of an all-zero embedding is 0.

    Raises:
        UsageError: The form is unknown.

    Source:
        Klein and Nabi (2022), SCD, the self-contrastive loss.

    Example:
        >>> import torch
        >>> h1 = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> h2 = torch.tensor([[0.8, 0.6], [0.0, 2.0]])
        >>> self_contrast(h1, h2)
        tensor(0.9000)
    """
    check_value(form in SELF_CONTRAST_FORMS, "form", form, f"one of: {', '.join(SELF_CONTRAST_FORMS)}")
    cosine = cosine_similarity(h1.float(), h2.float(), dim=-1).mean()
    return cosine / 0.05 if form == "code" else cosine


@in_float32
def decorrelation(p1: Tensor, p2: Tensor, off_diagonal_weight: float) -> Tensor:
    r"""Decorrelation loss: make each feature predictable from the other view, and independent of the other features.

    Use it for training without negatives, as in SCD, or as a regularizer in other objectives. It needs batches that are
    large enough to estimate correlations; the paper uses 192 sentences.

    Also known as the Barlow Twins loss, or redundancy reduction.

        loss = sum_j (1 - C_jj)^2 + off_diagonal_weight * sum_{j != k} C_jk^2,   C = a^T b / N

    where a and b are the batch-normalized projections of the two views. The paper prints a minus before the first sum
    (eq. 4) and normalizes by a single sum of products (eq. 3); like the authors' code, this function uses plus and the
    batch size.

    C must cover the whole batch. With several processes, gather the embeddings with gradient and project them in each
    process; the mean over processes then equals a single process on the joined batch. (The released code computes C per
    process but divides by the global batch size, so that its diagonal cannot reach 1.)

    Args:
        p1: Projections of the first view for the sentences of all processes, (N, D). Any floating-point type; computed
            in float32, even under autocast.
        p2: Projections of the second view, (N, D).
        off_diagonal_weight: Weight of the correlations between different features, the paper's lambda.

    Returns:
        The loss, a scalar.

    Raises:
        UsageError: The batch has only one sentence, so there is no variance.

    Source:
        Klein and Nabi (2022), SCD, eq. 3 and 4; Zbontar et al. (2021), Barlow Twins, eq. 1.

    Example:
        >>> import torch
        >>> p1 = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        >>> p2 = torch.tensor([[1.0, 1.0], [1.0, 1.0], [-1.0, -1.0], [-1.0, -1.0]])
        >>> decorrelation(p1, p2, off_diagonal_weight=0.01)
        tensor(1.0100)
    """
    n = len(p1)
    if n < 2:
        raise UsageError(
            "The batch has 1 sentence, so the decorrelation loss has no variance to normalize by",
            fix="Use a `per_device_train_batch_size` of 2 or more.",
        )
    a = batch_norm(p1.float(), None, None, training=True)  # (N, D)
    b = batch_norm(p2.float(), None, None, training=True)  # (N, D)
    diagonal = (a * b).mean(0)  # (D,)
    # sum_jk C_jk^2 = sum_ik (a a^T)_ik (b b^T)_ik: N x N products instead of the D x D matrix C.
    total = ((a @ a.T) * (b @ b.T)).sum() / n**2
    off_diagonal = total - diagonal.square().sum()  # in bfloat16 this difference would be lost
    return (1 - diagonal).square().sum() + off_diagonal_weight * off_diagonal


class Projector(Head):
    """SCD's projector: three linear layers with batch normalization and ReLU in between.

    The batch normalization of the output is part of the loss.

    Source:
        Klein and Nabi (2022), section 3.2.
    """

    def __init__(self, model: Any, size: int):
        super().__init__()
        with torch.device("meta"):
            self.layers = nn.Sequential(
                nn.Linear(model.config.hidden_size, size),
                nn.BatchNorm1d(size),
                nn.ReLU(inplace=True),
                nn.Linear(size, size, bias=False),
                nn.BatchNorm1d(size),
                nn.ReLU(inplace=True),
                nn.Linear(size, size, bias=False),
            )
        self.layers.to_empty(device=model.device)
        self.layers.apply(model._init_weights)  # same initialization as new layers of the encoder

    def forward(self, model, inputs: HeadInputs) -> tuple[Tensor, Tensor]:
        """Return the projections (W*B, D) of each view. The views are normalized separately, over all W processes."""
        x = torch.cat([inputs.gather(view) for view in inputs.projection.chunk(2)])  # (2*W*B, hidden)
        for layer in self.layers:
            # A linear layer reads its weights once for both views.
            x = torch.cat([layer(view) for view in x.chunk(2)]) if isinstance(layer, nn.BatchNorm1d) else layer(x)
        first, second = x.chunk(2)
        return first, second


@dataclass
class SelfContrast(Term):
    """SCD's repulsion of the two views. See `self_contrast`."""

    title = "self-contrast"
    paper = "scd"

    weight: float = option(1.0, "Weight of SCD's self-contrastive loss.")
    form: str = option(
        "paper",
        "Form of the self-contrastive loss: `paper`, or `code` as in the authors' code.",
        choices=SELF_CONTRAST_FORMS,
    )

    def loss(self, views: Views) -> Tensor:
        return self_contrast(views.z1, views.z2, self.form)


@dataclass
class Decorrelation(Term):
    """Decorrelation of the features of a projection of both views. See `decorrelation`."""

    title = "decorrelation of features"
    paper = "scd"
    smallest_batch = 2  # to have a variance

    weight: float = option(0.005, "Weight of the decorrelation loss, SCD's alpha.")
    off_diagonal_weight: float = option(
        0.013, "Weight of correlations between different features in the decorrelation loss, SCD's lambda."
    )
    projector_size: int = option(4096, "Output dimension of the projector for the decorrelation loss.")

    def check(self) -> None:
        fits = 0 <= self.off_diagonal_weight < math.inf
        check_value(fits, "off_diagonal_weight", self.off_diagonal_weight, "0 or more")
        check_value(self.projector_size >= 1, "projector_size", self.projector_size, "1 or more (the paper uses 4096)")

    def head(self, model: nn.Module) -> Projector:
        return Projector(model, self.projector_size)

    def loss(self, views: Views) -> Tensor:
        first, second = views.heads[self.head_name]
        return decorrelation(first, second, self.off_diagonal_weight)
