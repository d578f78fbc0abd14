"""Self-contrastive decorrelation: push the two views of a sentence apart, and tie the features of their projections."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, cosine_similarity

from informin.errors import UsageError
from informin.objectives.precision import in_float32
from informin.objectives.terms import Head, PaperRow, Term, Views, option, require

FORMS = ("paper", "reference")


def self_contrast(h1: Tensor, h2: Tensor, form: str = "paper") -> Tensor:
    r"""L_S, the mean cosine of the two views of a sentence, to be minimized: it pushes them apart.

    - `paper`: mean_i cos(h1_i, h2_i).
    - `reference`: what the authors' code computes, the same divided by 0.05, the temperature of the SimCSE code that
      it started from: 20 times stronger for the same weights.

    Args:
        h1, h2: (N, d), the embeddings under the low and the high dropout rate. Any floating type; computed in float32.
        form: one of `FORMS`.

    Returns:
        A scalar, the mean over the local sentences. An embedding of zeros counts with a cosine of 0.

    Raises:
        UsageError: the form is unknown.

    Source:
        Klein & Nabi (2022), the self-contrastive loss.
    """
    if form not in FORMS:
        raise UsageError(f"Unknown self-contrast form {form!r}. Use one of: {', '.join(FORMS)}.")
    cosine = cosine_similarity(h1.float(), h2.float(), dim=-1).mean()
    return cosine / 0.05 if form == "reference" else cosine


@in_float32
def decorrelation(p1: Tensor, p2: Tensor, off_diagonal_weight: float) -> Tensor:
    r"""L_C = sum_j (1 - C_jj)^2 + off_diagonal_weight sum_{j != k} C_jk^2, to be minimized.

    C is the cross-correlation of the batch-normalized projections a, b of the two views: C = a^T b / N. Two places of
    the paper cannot be meant as printed. Eq. 4 has a minus before its first sum; minimizing needs plus. Eq. 3 divides
    by one sum of products; the authors' code divides batch-normalized projections by the batch size, as here.

    C belongs to the whole batch. Over several processes gather the embeddings with gradient and project them on every
    process: averaging over processes then equals one process on the joined batch. In the released code C and its
    gradient are local, and C is divided by the global batch size, so its diagonal cannot reach 1.

    The D x D matrix is never built: |a^T b|^2 = sum_ik (a a^T)_ik (b b^T)_ik needs N x N only, and at N = 192,
    D = 4096 a twentieth of the multiplications.

    Args:
        p1, p2: (N, D), the projector's output for all sentences of all processes, the same on each. Any floating type;
            computed in float32.
        off_diagonal_weight: lambda of the paper.

    Returns:
        A scalar.

    Raises:
        UsageError: one sentence in the whole batch, which has no variance.

    Source:
        Klein & Nabi (2022), eq. 3 and 4; after Zbontar et al. (2021), Barlow Twins, eq. 1.
    """
    n = len(p1)
    if n < 2:
        raise UsageError(
            "The decorrelation has a batch of 1 sentence and so no variance for its batch normalization. "
            "Use a `per_device_train_batch_size` of 2 or more."
        )
    a = batch_norm(p1.float(), None, None, training=True)  # (N, D)
    b = batch_norm(p2.float(), None, None, training=True)  # (N, D)
    diagonal = (a * b).mean(0)  # (D,)
    total = ((a @ a.T) * (b @ b.T)).sum() / n**2  # sum_jk C_jk^2
    off_diagonal = total - diagonal.square().sum()  # bfloat16 products would lose this difference
    return (1 - diagonal).square().sum() + off_diagonal_weight * off_diagonal


class Projector(Head):
    """Three linear layers, batch normalization and ReLU between them (Klein and Nabi, 2022, section 3.2).

    The last batch normalization, which has no weights, is the loss's.
    """

    def __init__(self, model: nn.Module, size: int):
        super().__init__()
        with torch.device("meta"):
            self.layers = nn.Sequential(
                *(nn.Linear(model.config.hidden_size, size), nn.BatchNorm1d(size), nn.ReLU(inplace=True)),
                *(nn.Linear(size, size, bias=False), nn.BatchNorm1d(size), nn.ReLU(inplace=True)),
                nn.Linear(size, size, bias=False),
            )
        self.layers.to_empty(device=model.device)
        self.layers.apply(model._init_weights)  # as the encoder's own fresh layers are drawn

    def forward(self, model, projection, input_ids, attention_mask, sentence_ids, gather) -> tuple[Tensor, Tensor]:
        """(W*B, D) for each of the two views, W processes: each by itself, or the two would share their statistics."""
        first, second = projection.chunk(2)
        return self.layers(gather(first)), self.layers(gather(second))


@dataclass
class SelfContrast(Term):
    """The cosine of the two views, which are pushed apart."""

    name = "self_contrast"
    title = "self-contrast"
    weight = "self_contrast_weight"
    paper = "scd"

    self_contrast_weight: float = option(0, "Of SCD's repulsion of the two views.")
    self_contrast_form: str = option(
        "paper", "paper: the mean cosine. reference: as the authors' code, divided by 0.05.", choices=FORMS
    )

    def loss(self, views: Views) -> dict[str, Tensor]:
        return {"self_contrast": self_contrast(views.z1, views.z2, self.self_contrast_form)}


def _row(name: str, weight: float, off_diagonal_weight: float, view_dropout: list[float]) -> PaperRow:
    weights = {"decorrelation_weight": weight, "off_diagonal_weight": off_diagonal_weight, "self_contrast_weight": 1.0}
    return PaperRow(name, 192, 3e-5, weights | {"view_dropout": view_dropout})


SCD_ROWS = {  # Klein and Nabi (2022), section 4
    ("bert", 768): _row("SCD, section 4, bert-base", 0.005, 0.013, [0.05, 0.15]),
    ("roberta", 768): _row("SCD, section 4, roberta-base", 0.0033, 0.028, [0.065, 0.24]),
}


@dataclass
class Decorrelation(Term):
    """Features of the two views' projections that are tied to themselves and to no other."""

    name = "decorrelation"
    title = "decorrelation of features"
    weight = "decorrelation_weight"
    paper = "scd"
    smallest_batch = 2  # for a variance
    fixed = ("projector_size",)

    decorrelation_weight: float = option(0, "alpha, of SCD's decorrelation of features.")
    off_diagonal_weight: float = option(
        SCD_ROWS["bert", 768].options["off_diagonal_weight"],
        "SCD's lambda, of correlations between features within the decorrelation.",
    )
    projector_size: int = option(4096, "Width of the projector that decorrelation reads.")

    def check(self) -> None:
        fits = 0 <= self.off_diagonal_weight < math.inf
        require(fits, "off_diagonal_weight", self.off_diagonal_weight, "0 or more")
        require(self.projector_size >= 1, "projector_size", self.projector_size, "1 or more (the paper uses 4096)")

    def head(self, model: nn.Module) -> Projector:
        return Projector(model, self.projector_size)

    def loss(self, views: Views) -> dict[str, Tensor]:
        return {"decorrelation": decorrelation(*views.heads["decorrelation"], self.off_diagonal_weight)}
