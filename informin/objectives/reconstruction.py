"""Reconstruction loss of InforMin-CL."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import mse_loss, normalize

from informin.objectives.term import Term, Views
from informin.options import check_value, option

FORMS = ("code", "paper", "unit")


def reconstruction(z1: Tensor, z2: Tensor, form: str = "code") -> Tensor:
    r"""Reconstruction loss: predict one view from the other, to discard information that the two views do not share.

    Use it with `contrast`, as in InforMin-CL. The weight depends on the form and on the encoder (the paper uses 0.4 for
    BERT and 4 for RoBERTa).

    Also known as an alignment loss (Wang and Isola, 2020), or the mean squared error between views.

    - `code`: what the authors' code computes, mse(u1, u2) + mse(u2, u1) for unit vectors u, 4 (1 - cos) / d.
    - `paper`: mean_i |z1_i - z2_i|^2, the paper's eq. 8. Smaller projections also lower it, so its effect fades during
      training.
    - `unit`: the same for unit vectors, 2 (1 - cos). At d = 768 it is 384 times stronger than `code`.

    The paper prints a minus before the distance, which is the sign of a log-likelihood to maximize.

    Args:
        z1: First views, (N, d). Any floating-point type; computed in float32.
        z2: Second views, (N, d).
        form: `code`, `paper` or `unit`.

    Returns:
        The mean over the local sentences, a scalar.

    Raises:
        UsageError: The form is unknown.

    Source:
        Chen et al. (2022), InforMin-CL, eq. 8.

    Example:
        >>> import torch
        >>> z1 = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> z2 = torch.tensor([[1.0, 0.5], [0.0, 2.0]])
        >>> reconstruction(z1, z2, "paper")
        tensor(0.6250)
    """
    check_value(form in FORMS, "form", form, f"one of: {', '.join(FORMS)}")
    z1, z2 = z1.float(), z2.float()
    if form == "paper":
        return (z1 - z2).pow(2).sum(-1).mean()
    u1, u2 = normalize(z1, dim=-1), normalize(z2, dim=-1)
    if form == "unit":
        return (u1 - u2).pow(2).sum(-1).mean()
    return mse_loss(u1, u2) + mse_loss(u2, u1)


@dataclass
class Reconstruction(Term):
    """Distance between the projections of the two views. See `reconstruction`.

    The default is the form in the authors' code. The paper's form improves STS in short runs on encoders that were
    trained for embeddings, and ends below SimCSE in long runs (docs/results.md).
    """

    paper = "informin"

    weight: float = option(
        0.4, "Weight of the reconstruction loss, InforMin-CL's lambda. Its scale depends on the form."
    )
    form: str = option(
        "code",
        "Form of the reconstruction loss: `code` as in the authors' code, `paper` as in the paper, which is stronger, "
        "or `unit`, the paper's on unit vectors.",
        choices=FORMS,
    )

    def loss(self, views: Views) -> dict[str, Tensor]:
        values = {"reconstruction": reconstruction(views.z1, views.z2, self.form)}
        if self.form == "paper":
            # This form can be lowered by shrinking z, which the contrastive loss ignores. Log the norm to show it.
            values["projection_norm"] = torch.cat([views.z1, views.z2]).detach().norm(dim=-1).mean()
        return values
