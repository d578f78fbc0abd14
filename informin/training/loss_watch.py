"""The losses of the steps: their means for the log, and a stop at the first NaN."""

from collections import Counter
from collections.abc import Mapping

import torch
from accelerate import Accelerator
from torch import Tensor

from informin.errors import NonFiniteLossError
from informin.training.log_entries import TERM


class LossWatch:
    """Collects the losses of the steps and their terms.

    Reading a number from a GPU waits for all queued work. So losses are checked at once on a CPU only. On a GPU, the
    first loss that is not finite stays on the device until `check` is called: for each log line, and before anything is
    saved, evaluated or returned.
    """

    def __init__(self, device: torch.device):
        self._checks_each = device.type == "cpu"
        self._sums: dict[str, Tensor] = {}
        self._steps: Counter[str] = Counter()  # in which each term was computed: its further values may not be in all
        self._names: list[str] = []
        self._first: Tensor | None = None  # step, loss and terms: of the first loss that is not finite, else the last

    def add(self, step: int, loss: Tensor, values: Mapping[str, Tensor]) -> None:
        """Add the loss of a step, counted from 1, and its terms by name.

        Raises:
            NonFiniteLossError: See `check`.
        """
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0) + value
        self._steps.update(values.keys())
        self._names = [name.removeprefix(TERM) for name in values]
        numbers = [loss.detach(), *values.values()]
        now = torch.stack([torch.full_like(loss, step, dtype=torch.float32), *(value.float() for value in numbers)])
        if self._first is not None and len(self._first) != len(now):
            self.check()  # the terms changed
        if self._first is not None:
            now = torch.where(self._first[1].isfinite(), now, self._first)
        self._first = now
        if self._checks_each:
            self.check()

    def check(self) -> None:
        """Raise NonFiniteLossError for the first loss that is NaN or infinite."""
        first = self._first
        self._first = None
        if first is None or first[1].isfinite():
            return
        step, loss, *values = first.tolist()
        terms = ", ".join(f"{name} {value:.4g}" for name, value in zip(self._names, values))
        raise NonFiniteLossError(
            f"The loss is {loss} at step {step:.0f} ({terms}). Earlier checkpoints are intact. Try a lower "
            "`learning_rate`, warmup (`warmup_steps` 0.1), or fp32 instead of fp16."
        )

    def pop_means(self, accelerator: Accelerator) -> dict[str, float]:
        """Return the means of the terms over steps and processes since the last call. Empty without terms."""
        self.check()
        means = {name: value / self._steps[name] for name, value in self._sums.items()}
        self._sums = {}
        self._steps = Counter()
        if not means:
            return {}
        reduced = accelerator.reduce(torch.stack(list(means.values())), reduction="mean")
        return dict(zip(means, reduced.tolist()))
