"""Masked language modeling, which keeps the encoder's knowledge of tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from informin.distributed import sum_over_processes, world_size
from informin.objectives.terms import Masking, Term, Views, option, require


def masked_lm(losses: Tensor) -> Tensor:
    r"""The mean cross entropy at the masked positions of all processes.

    Processes mask different numbers of tokens. Dividing by the global count (and multiplying by the number of
    processes, which averaging divides out again) makes the average over processes the mean of the joined batch.

    Args:
        losses: (M,), the cross entropy at each of the M masked positions of this process.

    Returns:
        A scalar; 0 where nothing is masked.

    Source:
        Devlin et al. (2019), section 3.1; its weight is beta in Chen et al. (2022), table 6.
    """
    count = sum_over_processes(torch.tensor(float(len(losses)), device=losses.device))
    return losses.sum() * world_size() / count.clamp(min=1)


@dataclass
class MaskedLM(Term):
    """The pretrained language-model head on masked sentences."""

    name = "mlm"
    title = "masked language modeling"
    weight = "mlm_weight"
    lm_head = True
    views_differ = False

    mlm_weight: float = option(0, "beta, of masked language modeling.")
    mlm_probability: float = option(0.15, "Share of the tokens that is masked.")
    masked_views: bool = option(
        False, "With MLM, contrast the masked sentences, as InforMin-CL's release does by accident."
    )

    def check(self) -> None:
        require(0 < self.mlm_probability < 1, "mlm_probability", self.mlm_probability, "a fraction between 0 and 1")

    @property
    def masking(self) -> Masking:
        return Masking(self.mlm_probability, self.masked_views)

    def loss(self, views: Views) -> dict[str, Tensor]:
        return {"mlm": masked_lm(views.lm_losses)}
