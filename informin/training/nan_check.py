"""Stop a run at the first loss that is NaN or infinite, before its weights are saved or used."""

from collections.abc import Mapping

import torch
from torch import Tensor

from informin.errors import NonFiniteLossError
from informin.training.checkpoints import complete_checkpoints
from informin.training.options import InforMinTrainingArguments


class NaNCheck:
    """Checks every loss of a run: on a CPU at once, on a GPU a few steps later.

    Reading a number from a GPU waits for all queued work, so losses are collected and checked together. Call `check`
    before anything is saved, evaluated or returned.

    Args:
        args: Arguments of the run.

    Attributes:
        patience: Number of losses to collect before checking them.
    """

    def __init__(self, args: InforMinTrainingArguments):
        self.output_dir, self.patience = args.output_dir, 0 if args.device.type == "cpu" else 15
        self._waiting: list[tuple[int, Tensor, dict[str, Tensor]]] = []

    def add(self, step: int, loss: Tensor, values: Mapping[str, Tensor]) -> None:
        """Add the loss of a step, counted from 1, and its terms by name. Calls `check` if enough losses wait."""
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
        saved = complete_checkpoints(self.output_dir or ".")
        last = f"The last good checkpoint is {saved[-1]}." if saved else "No checkpoint was saved before it."
        raise NonFiniteLossError(
            f"The loss is {loss.item()} at step {step} ({terms}). {last} Try a lower `learning_rate`, warmup "
            "(`warmup_steps` 0.1), or fp32 instead of fp16."
        )
