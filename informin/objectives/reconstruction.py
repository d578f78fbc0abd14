"""Reconstruction: one view predicts the other, which throws away what the two do not share."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import mse_loss, normalize

from informin.errors import UsageError
from informin.objectives.terms import PaperRow, Term, Views, option

FORMS = ("squared_l2", "unit_squared_l2", "reference")


def reconstruction(z1: Tensor, z2: Tensor, form: str = "squared_l2") -> Tensor:
    r"""Distance between the two views, to be minimized.

    Eq. 8 is printed as E[-|z1 - z2|^2], "minimized"; it is a log-likelihood and has to be maximized, so the loss is
    +|z1 - z2|^2. Its weight lambda means nothing without the form:

    - `squared_l2`: mean_i sum_d (z1 - z2)^2, eq. 8 with its sign mended. Shrinking z lowers it for
      free: it fades as training goes on.
    - `unit_squared_l2`: the same on unit vectors, 2 (1 - cos).
    - `reference`: what the authors' code computes, mse(u1, u2) + mse(u2, u1) on unit vectors with the mean over
      dimensions too, 4 (1 - cos) / d: at d = 768, 384 times weaker than `unit_squared_l2`.

    Args:
        z1, z2: (N, d), the two views. Any floating type; computed in float32.
        form: one of `FORMS`.

    Returns:
        A scalar, the mean over the local sentences.

    Raises:
        UsageError: the form is unknown.

    Source:
        Chen et al. (2022), eq. 8.
    """
    z1, z2 = z1.float(), z2.float()
    if form == "squared_l2":
        return (z1 - z2).pow(2).sum(-1).mean()
    u1, u2 = normalize(z1, dim=-1), normalize(z2, dim=-1)
    if form == "unit_squared_l2":
        return (u1 - u2).pow(2).sum(-1).mean()
    if form == "reference":
        return mse_loss(u1, u2) + mse_loss(u2, u1)
    raise UsageError(f"Unknown reconstruction form {form!r}. Use one of: {', '.join(FORMS)}.")


@dataclass
class Reconstruction(Term):
    """The distance of the two views."""

    name = "reconstruction"
    title = "reconstruction"
    weight = "reconstruction_weight"
    paper = "informin"

    reconstruction_weight: float = option(0, "lambda, of the reconstruction; nothing without its form.")
    reconstruction_form: str = option(
        "squared_l2",
        "squared_l2: eq. 8 on the projections as they are. unit_squared_l2: on unit vectors. reference: as the "
        "authors' code, hidden size / 2 times weaker than unit_squared_l2.",
        choices=FORMS,
    )

    def loss(self, views: Views) -> dict[str, Tensor]:
        terms = {"reconstruction": reconstruction(views.z1, views.z2, self.reconstruction_form)}
        if self.reconstruction_form == "squared_l2":
            # Shrinking z lowers this form, and the contrast does not feel it: watch the norm.
            terms["projection_norm"] = torch.cat([views.z1, views.z2]).detach().norm(dim=-1).mean()
        return terms


INFORMIN_ROWS = {  # Chen et al. (2022), table 3
    ("bert", 768): PaperRow("InforMin-CL, table 3, bert-base", 128, 3e-5, {"reconstruction_weight": 0.4}),
    ("roberta", 768): PaperRow("InforMin-CL, table 3, roberta-base", 128, 1e-5, {"reconstruction_weight": 4.0}),
    ("roberta", 1024): PaperRow("InforMin-CL, table 3, roberta-large", 128, 3e-5, {"reconstruction_weight": 4.0}),
}
