"""How strong each term of a loss is relative to the contrast, measured at the first step."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from informin.threads import retained_graphs

CONTRAST = "contrast"


def shares(
    losses: Mapping[str, Tensor], projection: Tensor, size: int, weights: Sequence[Tensor]
) -> dict[str, tuple[float, bool]]:
    """Return the strength of each weighted term divided by that of the contrast. Changes no gradient and no weight.

    Of a term that reads the projections, such as reconstruction, it is the pull on the positive pairs: the derivative
    of the term along the gradient of the pairs' cosines. If the negatives are at right angles to the pairs, the
    contrast has (1 - p) / temperature, with p the softmax probability of the pair, and reconstruction in the form
    `code` has 4 lambda / d. It is negative for a term that pushes the two views apart. Of another term, such as masked
    language modeling and attention mutual information, it is the norm of the gradient by the weights that both terms
    train.

    Args:
        losses: Weighted terms by name, including the contrast.
        projection: Projections from which the terms were computed, (N, d): view 1, view 2, and maybe further rows.
        size: Number of sentences B, at most N / 2.
        weights: Weights to train. Empty leaves out the terms that do not read the projections.

    Returns:
        By name, the ratio, and whether it is that of the pull on the positive pairs.
    """
    cosines = cosine_similarity(projection[:size].float(), projection[size : 2 * size].float())
    toward = torch.autograd.grad(cosines.sum(), projection)[0]
    pulls: dict[str, float] = {}
    for name, loss in losses.items():
        gradient = gradients(loss, [projection])[0]
        if gradient is not None:
            pulls[name] = -(gradient.float() * toward.float()).sum().item()
    found: dict[str, tuple[float, bool]] = {}
    if pulls.get(CONTRAST, 0) > 0:
        found = {name: (pull / pulls[CONTRAST], True) for name, pull in pulls.items() if name != CONTRAST}
    others = [name for name in losses if name not in pulls]
    if not weights or not others:
        return found
    base = gradients(losses[CONTRAST], weights)
    for name in others:
        ratio = _ratio_of_norms(gradients(losses[name], weights), base)
        if ratio is not None:
            found[name] = (ratio, False)
    return found


def _ratio_of_norms(gradient: Sequence[Tensor | None], base: Sequence[Tensor | None]) -> float | None:
    """Return the norm of a gradient divided by that of another, over the weights that both have; None without such."""
    mine: list[Tensor] = []
    its: list[Tensor] = []
    for x, y in zip(gradient, base):
        if x is not None and y is not None:
            mine.append(x.float().norm())
            its.append(y.float().norm())
    if not mine:
        return None
    return (torch.stack(mine).norm() / torch.stack(its).norm()).item()


def gradients(loss: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Return the gradients by the inputs, None for inputs that the loss does not depend on, and keep the graph."""
    if not loss.requires_grad:
        return tuple(None for _ in inputs)
    with retained_graphs():
        return torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True)


def shares_line(found: Mapping[str, tuple[float, bool]]) -> str:
    """Return the shares as text, such as "reconstruction 0.8% of the contrast's pull on the positive pairs"."""
    of = {True: "the contrast's pull on the positive pairs", False: "the contrast's gradient"}
    return ", ".join(f"{name} {ratio_text(value)} {of[pull]}" for name, (value, pull) in found.items())


def ratio_text(value: float) -> str:
    """Return a ratio as text: "0.8% of" below 1, "8 times" from 1 on."""
    if abs(value) < 1:
        return f"{100 * value:.2g}% of"
    return f"{value:,.0f} times" if abs(value) >= 10 else f"{value:.2g} times"
