"""Masked language modelling, which keeps the encoder's knowledge of tokens."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from informin.distributed import sum_over_processes, world_size
from informin.objectives.terms import Term


def masked_lm(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Cross entropy at the masked positions, the mean over those of all processes.

    Processes mask different numbers of tokens. Dividing by the global count (and multiplying by the number of
    processes, which averaging divides out again) makes the average over processes the mean of the joined batch.

    Args:
        logits: (M, V), at the M masked positions of this process. Any floating type; computed in float32.
        labels: (M,), the words that stood there.

    Returns:
        A scalar; 0 where nothing is masked.

    Source:
        Devlin et al. (2019), section 3.1; its weight is beta in Chen et al. (2022), table 6.
    """
    count = sum_over_processes(torch.tensor(float(len(labels)), device=logits.device))
    total = cross_entropy(logits.float(), labels, reduction="sum")
    return total * world_size() / count.clamp(min=1)


MASKED_LM = Term(
    "mlm",
    "mlm_weight",
    loss=lambda views, options: {"mlm": masked_lm(views.mlm_logits, views.mlm_labels)},
    options=("mlm_probability", "masked_views"),
    title="masked language modelling",
    heads=lambda options: {"lm_head": True},
)
