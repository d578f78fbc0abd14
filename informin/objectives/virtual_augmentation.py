"""Virtual augmentation: separate an embedding with the hardest perturbation from its neighbors in the batch (VaSCL)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from informin.distributed import gather_with_gradient
from informin.errors import UsageError
from informin.objectives.contrast import copies
from informin.objectives.numerics import in_float32
from informin.objectives.term import Head, Term, Views
from informin.options import check_value, option
from modeling_informin import HeadInputs

FORMS = ("paper", "code")


@in_float32
def virtual_augmentation(f: Tensor, perturbed: Tensor, neighbors: Tensor, temperature: float = 0.05) -> Tensor:
    r"""Virtual augmentation loss: contrast of embeddings and perturbed ones, with the nearest neighbors as negatives.

    Use it with `contrast`, as in VaSCL, and with large batches, in which an embedding has near neighbors. The perturbed
    embedding replaces an augmentation of the text.

        loss = mean over a in {f_i, f'_i} of -log( exp(f_i . f'_i / t) /
               (exp(f_i . f'_i / t) + sum_{k in N(i)} exp(a . f_k / t) + exp(a . f'_k / t)) )

    With several processes, the candidates of all processes are gathered with gradient.

    Args:
        f: Unit vectors, (N, d). Any floating-point type; computed in float32.
        perturbed: Unit vectors f' with the perturbations of `hardest_direction`, (N, d).
        neighbors: Which candidates of the W processes are in the neighborhood N(i), (N, W*N) bool.
        temperature: Divides the cosines; above 0.

    Returns:
        The mean over the local sentences, a scalar.

    Source:
        Zhang et al. (2022), VaSCL; in both directions, as in the authors' code.

    Example:
        >>> import torch
        >>> f = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> perturbed = torch.tensor([[0.8, 0.6], [0.6, 0.8]])
        >>> virtual_augmentation(f, perturbed, ~torch.eye(2, dtype=torch.bool), temperature=1.0)
        tensor(0.9575)
    """
    f, perturbed = f.float(), perturbed.float()
    candidates = torch.cat([gather_with_gradient(f), gather_with_gradient(perturbed)])  # (2*W*N, d)
    positive = (f * perturbed).sum(-1, keepdim=True) / temperature  # (N, 1)
    losses = []
    for anchors in (f, perturbed):
        negative = (anchors @ candidates.T / temperature).masked_fill(~neighbors.repeat(1, 2), -torch.inf)
        losses.append(torch.cat([positive, negative], dim=1).logsumexp(1) - positive[:, 0])
    return torch.cat(losses).mean()


@in_float32
def hardest_direction(
    h: Tensor,
    start: Tensor,
    radius: float,
    project: Callable[[Tensor], Tensor],
    candidates: Tensor,
    neighbors: Tensor,
    temperature: float,
) -> Tensor:
    r"""Return the direction in which a perturbation makes an embedding most similar to its neighbors, (N, d).

    One step of gradient ascent from `start`, as in virtual adversarial training:

        delta = gradient of -log( exp(f' . f_i / t) / (exp(f' . f_i / t) + sum_{k in N(i)} exp(f' . f_k / t)) )
        f' = project(h_i + radius * start_i) / |project(h_i + radius * start_i)|

    Args:
        h: Embeddings, (N, d).
        start: Unit vectors, (N, d).
        radius: Length of the perturbation.
        project: The projection head.
        candidates: Unit vectors f of the projections of all processes, (W*N, d).
        neighbors: Which candidates are in the neighborhood, (N, W*N) bool.
        temperature: Divides the cosines; above 0.

    Source:
        Zhang et al. (2022), VaSCL.
    """
    h = h.detach().float()
    own = normalize(project(h), dim=-1).detach()
    with torch.enable_grad():
        delta = (radius * start.float()).requires_grad_()
        perturbed = normalize(project(h + delta).float(), dim=-1)
        positive = (perturbed * own).sum(-1, keepdim=True) / temperature
        negative = (perturbed @ candidates.detach().float().T / temperature).masked_fill(~neighbors, -torch.inf)
        loss = (torch.cat([positive, negative], dim=1).logsumexp(1) - positive[:, 0]).sum()
        return normalize(torch.autograd.grad(loss, delta)[0], dim=-1)


class Perturbation(Head):
    """The neighborhoods of the first view in the batch, and its projections with the hardest perturbation."""

    def __init__(self, neighbors: int, radius: float, temperature: float, is_detached: bool):
        super().__init__()
        self.neighbors, self.radius, self.temperature = neighbors, radius, temperature
        self.is_detached = is_detached

    def forward(self, model, inputs: HeadInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Return unit vectors (B, d) without and with perturbations, and the neighborhoods (B, W*B) bool."""
        h, ids = inputs.embedding[: len(inputs.sentence_ids)], inputs.sentence_ids
        h = h.detach() if self.is_detached else h
        f = normalize(model.project(h).float(), dim=-1)
        f = f.detach() if self.is_detached else f
        with torch.no_grad():
            candidates, neighbors = inputs.gather(f), self.neighborhood(h, inputs.gather(h), ids, inputs.gather(ids))
        start = normalize(self.start(h), dim=-1)
        delta = hardest_direction(h, start, self.radius, model.project, candidates, neighbors, self.temperature)
        return f, normalize(model.project(h + self.radius * delta).float(), dim=-1), neighbors

    def start(self, h: Tensor) -> Tensor:
        """Return random directions (B, d)."""
        return torch.rand_like(h, dtype=torch.float32) - 0.5

    def neighborhood(self, h: Tensor, candidates: Tensor, ids: Tensor, all_ids: Tensor) -> Tensor:
        """Return which candidates have the largest dot products with each embedding, (B, W*B) bool; no copies."""
        dots = (h.float() @ candidates.float().T).masked_fill(copies(ids, all_ids), -torch.inf)
        values, places = dots.topk(min(self.neighbors, dots.shape[1]), dim=1)
        return torch.zeros_like(dots, dtype=torch.bool).scatter(1, places, values > -torch.inf)


@dataclass
class VirtualAugmentation(Term):
    """Contrast with the hardest perturbation of an embedding in its neighborhood. See `virtual_augmentation`.

    The form `paper` also trains the encoder. The form `code`, that of the authors' code, trains only the projection
    head, because only the projections of the perturbed embeddings have a gradient.
    """

    paper = "vascl"
    reads_projections = False
    compares_views = False
    smallest_batch = 2  # one neighbor

    weight: float = option(1.0, "Weight of virtual augmentation, VaSCL's second loss.")
    form: str = option(
        "paper",
        "Form of virtual augmentation: `paper`, or `code` as in the authors' code, which trains the projection head "
        "alone.",
        choices=FORMS,
    )
    neighbors: int = option(16, "Nearest neighbors in the batch that virtual augmentation takes as negatives.")
    perturbation_radius: float = option(15.0, "Length of the perturbation of embeddings in virtual augmentation.")
    perturbation_temperature: float = option(0.05, "Temperature of virtual augmentation.")

    def check(self) -> None:
        check_value(self.neighbors >= 1, self.option_name("neighbors"), self.neighbors, "1 or more")
        for name in ("perturbation_radius", "perturbation_temperature"):
            value = getattr(self, name)
            check_value(0 < value < math.inf, name, value, "a number above 0")

    def head(self, model: Any) -> Perturbation:
        detached = self.form == "code"
        if detached and getattr(model, "mlp", None) is None:
            raise UsageError(
                "is code, which trains only the projection head, and there is none",
                option=self.option_name("form"),
                fix="Set `projection_head` to mlp, or use the form `paper`.",
            )
        return Perturbation(self.neighbors, self.perturbation_radius, self.perturbation_temperature, detached)

    def loss(self, views: Views) -> Tensor:
        return virtual_augmentation(*views.heads[self.head_name], self.perturbation_temperature)
