"""Masked language modeling as an auxiliary loss."""

from dataclasses import dataclass

import torch
from torch import Tensor

from informin.distributed import part_of_mean
from informin.objectives.term import Masking, Term, Views, needed
from informin.options import option

MASKED = 0.15  # fraction of the tokens, as in BERT


def masked_lm(losses: Tensor) -> Tensor:
    r"""Masked language modeling loss: predict masked tokens.

    Use it with a contrastive loss to preserve the encoder's knowledge of words. The checkpoint must contain a
    pretrained language modeling head.

    Also known as MLM, or the cloze task.

        loss = sum(losses of all processes) / number of masked tokens in all processes

    Args:
        losses: Cross-entropy at each of the M masked positions of this process, (M,).

    Returns:
        The mean, a scalar; 0 if nothing is masked.

    Source:
        Devlin et al. (2019), BERT, section 3.1. Its weight is beta in Chen et al. (2022), InforMin-CL, table 6.

    Example:
        >>> import torch
        >>> masked_lm(torch.tensor([1.0, 2.0, 6.0]))
        tensor(3.)
    """
    return part_of_mean(losses.sum(), torch.full((), float(len(losses)), device=losses.device))


@dataclass
class MaskedLM(Term):
    """Masked language modeling on masked copies of the sentences. See `masked_lm`."""

    name = "mlm"
    title = "masked language modeling"
    lm_head = True
    reads_projections = False
    compares_views = False

    weight: float = option(0.1, "Weight of masked language modeling, InforMin-CL's beta.")
    masked_views: bool = option(
        False, "Mask the two views themselves instead of a third copy, as in InforMin-CL's released code."
    )

    @property
    def masking(self) -> Masking:
        return Masking(MASKED, self.masked_views)

    def loss(self, views: Views) -> Tensor:
        return masked_lm(needed(views.lm_losses))
