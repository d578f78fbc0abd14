"""Means of the terms between two log entries."""

from collections.abc import Mapping

import torch
from accelerate import Accelerator
from torch import Tensor


class TermMeans:
    """The means of the logged values over the steps since the last log entry."""

    def __init__(self):
        self._sums: dict[str, Tensor] = {}
        self._steps = 0

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Add the values of a step by name."""
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0) + value
        self._steps += 1

    def pop(self, accelerator: Accelerator) -> dict[str, float]:
        """Return the means over steps and processes, and start again. Empty without a step."""
        if not self._steps:
            return {}
        means = torch.stack(list(self._sums.values())) / self._steps
        means = accelerator.reduce(means, reduction="mean")
        named = dict(zip(self._sums, means.tolist()))
        self._sums, self._steps = {}, 0
        return named
