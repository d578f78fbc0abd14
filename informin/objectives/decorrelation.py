"""Self-contrastive decorrelation: push the two views of a sentence apart, and tie the features of their projections."""

import torch
from torch import Tensor
from torch.nn.functional import batch_norm, cosine_similarity

from informin.errors import UsageError
from informin.objectives.terms import Term

SELF_CONTRAST_FORMS = ("paper", "reference")


def self_contrast(h1: Tensor, h2: Tensor, form: str = "paper") -> Tensor:
    r"""L_S, the mean cosine of the two views of a sentence, to be minimised: it pushes them apart.

    - `paper`: mean_i cos(h1_i, h2_i).
    - `reference`: what the authors' code computes, the same divided by 0.05, the temperature of the SimCSE code that
      it started from: 20 times stronger for the same weights.

    Args:
        h1, h2: (N, d), the embeddings under the low and the high dropout rate. Any floating type; computed in float32.
        form: one of `SELF_CONTRAST_FORMS`.

    Returns:
        A scalar, the mean over the local sentences. An embedding of zeros counts with a cosine of 0.

    Raises:
        UsageError: the form is unknown.

    Source:
        Klein & Nabi (2022), the self-contrastive loss.
    """
    if form not in SELF_CONTRAST_FORMS:
        raise UsageError(f"Unknown self-contrast form {form!r}. Use one of: {', '.join(SELF_CONTRAST_FORMS)}.")
    cosine = cosine_similarity(h1.float(), h2.float(), dim=-1).mean()
    return cosine / 0.05 if form == "reference" else cosine


def decorrelation(p1: Tensor, p2: Tensor, off_diagonal_weight: float) -> Tensor:
    r"""L_C = sum_j (1 - C_jj)^2 + off_diagonal_weight sum_{j != k} C_jk^2, to be minimised.

    C is the cross-correlation of the batch-normalised projections a, b of the two views: C = a^T b / N. Two places of
    the paper cannot be meant as printed. Eq. 4 has a minus before its first sum; minimising needs plus. Eq. 3 divides
    by one sum of products; the authors' code divides batch-normalised projections by the batch size, as here.

    C belongs to the whole batch. Over several processes gather the embeddings with gradient and project them on every
    process: averaging over processes then equals one process on the joined batch. In the released code C and its
    gradient are local, and C is divided by the global batch size, so its diagonal cannot reach 1.

    The D x D matrix is never built: |a^T b|^2 = sum_ik (a a^T)_ik (b b^T)_ik needs N x N only, and at N = 192,
    D = 4096 a twentieth of the multiplications.

    Args:
        p1, p2: (N, D), the projector's output for all sentences of all processes, the same on each. Any floating type;
            computed in float32, under autocast too.
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
            "The decorrelation has a batch of 1 sentence and so no variance for its batch normalisation. "
            "Use --per_device_train_batch_size 2 or more."
        )
    with torch.autocast(p1.device.type, enabled=False):  # bfloat16 products would lose the difference below
        a = batch_norm(p1.float(), None, None, training=True)  # (N, D)
        b = batch_norm(p2.float(), None, None, training=True)  # (N, D)
        diagonal = (a * b).mean(0)  # (D,)
        total = ((a @ a.T) * (b @ b.T)).sum() / n**2  # sum_jk C_jk^2
        off_diagonal = total - diagonal.square().sum()
        return (1 - diagonal).square().sum() + off_diagonal_weight * off_diagonal


SELF_CONTRAST = Term(
    "self_contrast",
    "self_contrast_weight",
    lambda views, options: {"self_contrast": self_contrast(views.z1, views.z2, options.self_contrast_form)},
    options=("self_contrast_form",),
    title="self-contrast",
    paper="scd",
)
DECORRELATION = Term(
    "decorrelation",
    "decorrelation_weight",
    lambda views, options: {
        "decorrelation": decorrelation(views.features1, views.features2, options.off_diagonal_weight)
    },
    options=("off_diagonal_weight", "projector_size"),
    title="decorrelation of features",
    paper="scd",
    heads=lambda options: {"projector_size": options.projector_size},
)
