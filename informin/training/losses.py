"""The losses of a run: a stop at the first NaN, the means of the terms, and their names in the log."""

from collections.abc import Mapping

import torch
from accelerate import Accelerator
from torch import Tensor

from informin.errors import NonFiniteLossError

TERM = "terms/"  # prefix of the objective's terms in the log


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
