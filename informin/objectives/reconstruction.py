"""Reconstruction loss of InforMin-CL."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import mse_loss, normalize

from informin.objectives.terms import PaperRow, Term, Views, check_value, option

FORMS = ("squared_l2", "unit_squared_l2", "reference")


def reconstruction(z1: Tensor, z2: Tensor, form: str = "squared_l2") -> Tensor:
    r"""Reconstruction loss: predict one view from the other, to discard information that the two views do not share.

    Use it next to `contrast`, as in InforMin-CL. The weight depends on the form and on the encoder (the paper uses 0.4
    for BERT and 4 for RoBERTa).

    Also known as an alignment loss (Wang and Isola, 2020), or the mean squared error between views.

    - `squared_l2`: mean_i |z1_i - z2_i|^2, the paper's eq. 8. Smaller projections also lower it, so its effect fades
      during training.
    - `unit_squared_l2`: the same for unit vectors, 2 (1 - cos).
    - `reference`: what the authors' code computes, mse(u1, u2) + mse(u2, u1) for unit vectors u, 4 (1 - cos) / d. At
      d = 768 it is 384 times weaker than `unit_squared_l2`.

    The paper prints a minus before the distance; that is the sign of a log-likelihood, which is maximized.

    Args:
        z1: First views, (N, d). Any floating-point type; computed in float32.
        z2: Second views, (N, d).
        form: `squared_l2`, `unit_squared_l2` or `reference`.

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
        >>> reconstruction(z1, z2)
        tensor(0.6250)
    """
    check_value(form in FORMS, "form", form, f"one of: {', '.join(FORMS)}")
    z1, z2 = z1.float(), z2.float()
    if form == "squared_l2":
        return (z1 - z2).pow(2).sum(-1).mean()
    u1, u2 = normalize(z1, dim=-1), normalize(z2, dim=-1)
    if form == "unit_squared_l2":
        return (u1 - u2).pow(2).sum(-1).mean()
    return mse_loss(u1, u2) + mse_loss(u2, u1)


@dataclass
class Reconstruction(Term):
    """Distance between the projections of the two views. See `reconstruction`.

    The default is the form in the authors' code. The paper's form improves STS in short runs on encoders that were
    trained for embeddings, and ends below SimCSE in long runs (docs/results.md).
    """

    name = "reconstruction"
    title = "reconstruction"
    weight = "reconstruction_weight"
    paper = "informin"

    reconstruction_weight: float = option(
        0, "Weight of the reconstruction loss, InforMin-CL's lambda. Its scale depends on the form."
    )
    reconstruction_form: str = option(
        "reference",
        "Form of the reconstruction loss: `reference` as in the authors' code, `squared_l2` as in the paper, which is "
        "stronger, or `unit_squared_l2` on unit vectors.",
        choices=FORMS,
    )

    def loss(self, views: Views) -> dict[str, Tensor]:
        terms = {"reconstruction": reconstruction(views.z1, views.z2, self.reconstruction_form)}
        if self.reconstruction_form == "squared_l2":
            # This form can be lowered by shrinking z, which the contrastive loss ignores. Log the norm to show it.
            terms["projection_norm"] = torch.cat([views.z1, views.z2]).detach().norm(dim=-1).mean()
        return terms


INFORMIN_ROWS = {  # Chen et al. (2022), table 3
    ("bert", 768): PaperRow("InforMin-CL, table 3, bert-base", 128, 3e-5, {"reconstruction_weight": 0.4}),
    ("roberta", 768): PaperRow("InforMin-CL, table 3, roberta-base", 128, 1e-5, {"reconstruction_weight": 4.0}),
    ("roberta", 1024): PaperRow("InforMin-CL, table 3, roberta-large", 128, 3e-5, {"reconstruction_weight": 4.0}),
}
