"""No weight is saved or used after a loss that is no number."""

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import TrainingArguments

from informin.errors import NonFiniteLossError
from informin.training.checkpoints import complete_checkpoints


class FiniteLosses:
    """Looks at every loss of a run: on a processor at once, on a GPU now and then.

    To read a number of a GPU is to wait for all work that it was given, and the next step could be on its way. `look`
    is to be called before anything is saved, scored or handed out.

    Args:
        args: of the run.

    Attributes:
        patience: losses that may wait for a look.
    """

    def __init__(self, args: TrainingArguments):
        self.output_dir, self.patience = args.output_dir, 0 if args.device.type == "cpu" else 15
        self._waiting: list[tuple[int, Tensor, dict[str, Tensor]]] = []

    def add(self, step: int, loss: Tensor, values: Mapping[str, Tensor]) -> None:
        """Adds the loss of a step, from 1, with its terms by name; `look` where enough are waiting."""
        self._waiting.append((step, loss.detach(), dict(values)))
        if len(self._waiting) > self.patience:
            self.look()

    def look(self) -> None:
        """Raises NonFiniteLossError, with what to go on from, for the first loss that is NaN or infinite."""
        waiting, self._waiting = self._waiting, []
        if not waiting or torch.stack([loss for _, loss, _ in waiting]).isfinite().all():
            return
        step, loss, values = next(one for one in waiting if not one[1].isfinite())
        terms = ", ".join(f"{name} {value.item():.4g}" for name, value in values.items())
        saved = complete_checkpoints(self.output_dir)
        good = f"The last good checkpoint is {saved[-1]}." if saved else "No checkpoint was saved before it."
        raise NonFiniteLossError(
            f"The loss is {loss.item()} at step {step} ({terms}). {good} A lower `learning_rate`, warm-up "
            "(`warmup_steps` 0.1), or fp32 instead of fp16 usually helps."
        )
