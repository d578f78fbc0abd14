"""Contrast: pull the two views of a sentence together against the other sentences of the batch."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from informin.distributed import gather_with_gradient, rank
from informin.errors import UsageError
from informin.objectives.terms import Term


def contrast(
    z1: Tensor,
    z2: Tensor,
    temperature: float = 0.05,
    queue: Tensor | None = None,
    same: Tensor | None = None,
) -> Tensor:
    r"""InfoNCE over in-batch negatives: mean_i -log softmax_k(cos(z1_i, z2_k) / temperature) at k = i.

    Over several processes the anchors z1 stay local and the candidates z2 are gathered with gradient, so the average
    over processes equals one process on the joined batch, in value and gradient.

    A queue of embeddings of earlier batches adds candidates that no anchor is paired with, without gradient. Rows of
    zeros are places not filled yet: they are left out, and their number stays, so that nothing waits for the device.
    So is the place of an anchor's own sentence, which a second epoch meets: it would be pushed from itself.

    Args:
        z1, z2: (N, d), the two views. Any floating type; computed in float32.
        temperature: the scale of the cosines, above 0.
        queue: (Q, d) or None, further candidates, the same on every process.
        same: (N, Q) bool, where the queue holds the anchor's own sentence; None for nowhere.

    Returns:
        A scalar, the mean over the local anchors.

    Raises:
        UsageError: one sentence in the whole batch, which leaves no negatives.

    Source:
        Chen et al. (2022), eq. 4, which maximises and has a constant 1/N in the logarithm; Gao et al. (2021), eq. 4.
        The queue: He et al. (2020), MoCo, section 3.2; Klein & Nabi (2023).
    """
    anchors = normalize(z1.float(), dim=-1)  # (N, d)
    candidates = gather_with_gradient(normalize(z2.float(), dim=-1))  # (W*N, d)
    if len(candidates) < 2:
        raise UsageError(
            "The contrast has a batch of 1 sentence and so no negatives. Use --per_device_train_batch_size 2 or more."
        )
    logits = anchors @ candidates.T / temperature  # (N, W*N)
    if queue is not None:
        further = anchors @ normalize(queue.detach().float(), dim=-1).T / temperature  # (N, Q)
        left_out = ~queue.any(-1) if same is None else same | ~queue.any(-1)  # (Q,) or (N, Q)
        logits = torch.cat([logits, further.masked_fill(left_out, -torch.inf)], dim=-1)  # (N, W*N + Q)
    targets = rank() * len(anchors) + torch.arange(len(anchors), device=logits.device)
    return cross_entropy(logits, targets)


CONTRAST = Term(
    "contrast",
    loss=lambda views, options: {
        "contrast": contrast(views.z1, views.z2, options.temperature, views.queue, views.same)
    },
    options=("temperature",),
    paper="simcse",
)
QUEUE = Term(
    "queue",
    "queue_size",
    options=("momentum_decay", "momentum_dropout"),
    title="negatives of earlier batches",
    paper="micse",
    heads=lambda options: {
        name: getattr(options, name) for name in ("queue_size", "momentum_decay", "momentum_dropout")
    },
)
