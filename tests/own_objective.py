"""An objective from outside the package, with its own option, weight and stateful head, in one file.

Importing it is all that a program has to do. See test_own_objective.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from informin.objectives import OBJECTIVES, Objective, Term
from informin.objectives.contrast import Contrast
from informin.objectives.terms import Head, PaperRow, option, require


def spread(z: Tensor, center: Tensor, power: float) -> Tensor:
    """Return minus the mean distance of embeddings (N, d) to a center (d,), to a power. It pushes them away from it."""
    return -(z - center).norm(dim=-1).pow(power).mean()


class MovingCenter(Head):
    """A linear layer, and the moving average of its outputs."""

    def __init__(self, width: int, device: torch.device):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.register_buffer("center", torch.zeros(width))
        self.register_buffer("newest", torch.zeros(width))
        self.to(device)

    def forward(self, model, projection, input_ids, attention_mask, sentence_ids, gather):
        z = torch.tanh(self.linear(projection))
        self.newest.copy_(z.detach().mean(0))
        return z, self.center.clone()

    def after_step(self, model) -> None:
        self.center.lerp_(self.newest, 0.1)


@dataclass
class Spread(Term):
    name = "spread"
    title = "spread around a center"
    weight = "spread_weight"
    paper = "simcse"

    spread_weight: float = option(0, "Of the spread.")
    spread_power: float = option(1.0, "Of the distance.")

    def check(self) -> None:
        require(self.spread_power > 0, "spread_power", self.spread_power, "a number above 0")

    def head(self, model) -> MovingCenter:
        return MovingCenter(model.config.hidden_size, model.device)

    def loss(self, views) -> dict[str, Tensor]:
        z, center = views.heads["spread"]
        return {"spread": spread(z, center, self.spread_power)}


ROWS = {("bert", 768): PaperRow("A paper, table 1, bert-base", 24, 2e-3, {"spread_weight": 0.25})}
OBJECTIVES["spread"] = Objective("Spread", (Contrast, Spread), ROWS)
