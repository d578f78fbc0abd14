"""The losses of a run: a stop at the first NaN, the means of the terms, their names in the log, and their strength."""

from collections.abc import Mapping, Sequence

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.nn.functional import cosine_similarity

from informin.errors import NonFiniteLossError
from informin.models.cpu_parts import retained_graphs

TERM = "terms/"  # prefix of the objective's terms in the log
CONTRAST = "contrast"


class Losses:
    """Collects the losses of the steps and their terms.

    Reading a number from a GPU waits for all queued work, so losses are checked on a CPU at once, on a GPU a few steps
    later. Call `check` before anything is saved, evaluated or returned, so that no such weights are saved or used.

    Attributes:
        patience: Number of losses to collect before checking them.
    """

    def __init__(self, device: torch.device):
        self.patience = 0 if device.type == "cpu" else 15
        self._waiting: list[tuple[int, Tensor, dict[str, Tensor]]] = []
        self._sums: dict[str, Tensor] = {}
        self._steps = 0

    def add(self, step: int, loss: Tensor, values: Mapping[str, Tensor]) -> None:
        """Add the loss of a step, counted from 1, and its terms by name. Calls `check` if enough losses wait."""
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0) + value
        self._steps += 1
        self._waiting.append((step, loss.detach(), dict(values)))
        if len(self._waiting) > self.patience:
            self.check()

    def check(self) -> None:
        """Raise NonFiniteLossError for the first loss that is NaN or infinite."""
        waiting, self._waiting = self._waiting, []
        if not waiting or torch.stack([loss for _, loss, _ in waiting]).isfinite().all():
            return
        step, loss, values = next(one for one in waiting if not one[1].isfinite())
        terms = ", ".join(f"{name} {value.item():.4g}" for name, value in values.items())
        raise NonFiniteLossError(
            f"The loss is {loss.item()} at step {step} ({terms}). Earlier checkpoints are intact. Try a lower "
            "`learning_rate`, warmup (`warmup_steps` 0.1), or fp32 instead of fp16."
        )

    def pop_means(self, accelerator: Accelerator) -> dict[str, float]:
        """Return the means of the terms over steps and processes since the last call. Empty without terms."""
        sums, steps, self._sums, self._steps = self._sums, self._steps, {}, 0
        if not sums:
            return {}
        means = accelerator.reduce(torch.stack(list(sums.values())) / steps, reduction="mean")
        return dict(zip(sums, means.tolist()))


def logged_terms(entry: Mapping) -> dict[str, float]:
    """Return the unweighted terms in a log entry by name, in the order of summation."""
    return {name.removeprefix(TERM): value for name, value in entry.items() if name.startswith(TERM)}


def logged_scores(entry: Mapping) -> dict[str, float]:
    """Return the evaluation scores in a log entry by name."""
    scores = {name.removeprefix("eval_"): value for name, value in entry.items() if name.startswith("eval_")}
    scores.pop("runtime", None)
    return scores


def loss_text(value: float) -> str:
    """Return a loss with four decimals, or, if it is small, with two digits: not 0.0000 for a contrast near 0."""
    return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.4f}"


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
    (toward,) = torch.autograd.grad(cosines.sum(), projection)
    pulls: dict[str, float] = {}
    found: dict[str, tuple[float, bool]] = {}
    for name, loss in losses.items():
        if (gradient := gradients(loss, [projection])[0]) is not None:
            pulls[name] = -(gradient.float() * toward.float()).sum().item()
    if pulls.get(CONTRAST, 0) > 0:
        found = {name: (pull / pulls[CONTRAST], True) for name, pull in pulls.items() if name != CONTRAST}
    if weights and (others := losses.keys() - pulls.keys()):
        base = gradients(losses[CONTRAST], weights)
        for name in (name for name in losses if name in others):
            both = [(x, y) for x, y in zip(gradients(losses[name], weights), base) if x is not None and y is not None]
            if both:
                mine, its = (torch.stack([x.float().norm() for x in side]).norm() for side in zip(*both))
                found[name] = ((mine / its).item(), False)
    return found


def gradients(loss: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Return the gradients by the inputs, None for inputs that the loss does not depend on, and keep the graph."""
    with retained_graphs():
        return torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True)


def shares_line(found: Mapping[str, tuple[float, bool]]) -> str:
    """Return the shares as text, such as "reconstruction 0.8% of the contrast's pull on the positive pairs"."""
    of = {True: "of the contrast's pull on the positive pairs", False: "of the contrast's gradient"}
    return ", ".join(f"{name} {100 * value:.2g}% {of[pull]}" for name, (value, pull) in found.items())
