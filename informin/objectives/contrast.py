"""Contrast: pull the two views of a sentence together against the other sentences of the batch."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from informin.distributed import gather_with_gradient, rank
from informin.errors import UsageError
from informin.objectives.blocks import mean_over_anchors
from informin.objectives.false_negatives import known_pairs
from informin.objectives.precision import in_float32
from informin.objectives.terms import PaperRow, Term, Views, option, require


@in_float32
def contrast(
    z1: Tensor,
    z2: Tensor,
    temperature: float = 0.05,
    queue: Tensor | None = None,
    own: Tensor | None = None,
    false_negatives: Tensor | None = None,
) -> Tensor:
    r"""InfoNCE over in-batch negatives: mean_i -log softmax_k(cos(z1_i, z2_k) / temperature) at k = i.

    Over several processes the anchors z1 stay local and the candidates z2 are gathered with gradient, so the average
    over processes equals one process on the joined batch, in value and gradient.

    A queue of embeddings of earlier batches adds candidates that no anchor is paired with, without gradient. Rows of
    zeros are places not filled yet: they are left out, and their number stays, so that nothing waits for the device.
    So is the place of an anchor's own sentence, which a second epoch meets: it would be pushed from itself.

    Args:
        z1, z2: (N, d), the two views. Any floating type; computed in float32, under autocast too.
        temperature: the scale of the cosines, above 0.
        queue: (Q, d) or None, further candidates, the same on every process.
        own: (N, Q) bool, where the queue holds the anchor's own sentence, or another that is no negative of it; None
            for nowhere.
        false_negatives: (N, W*N) bool, candidates that are no negatives of an anchor; its own other view always counts.

    Returns:
        A scalar, the mean over the local anchors.

    Raises:
        UsageError: one sentence in the whole batch, which leaves no negatives.

    Source:
        Chen et al. (2022), eq. 4, which maximizes and has a constant 1/N in the logarithm; Gao et al. (2021), eq. 4.
        The queue: He et al. (2020), MoCo, section 3.2; Klein & Nabi (2023).
    """
    anchors = normalize(z1.float(), dim=-1)  # (N, d)
    candidates = gather_with_gradient(normalize(z2.float(), dim=-1))  # (W*N, d)
    if len(candidates) < 2:
        raise UsageError(
            "The contrast has a batch of 1 sentence and so no negatives. Use a `per_device_train_batch_size` of 2 or "
            "more."
        )
    targets = rank() * len(anchors) + torch.arange(len(anchors), device=anchors.device)
    if queue is not None:
        queue = normalize(queue.detach().float(), dim=-1)
        empty = ~queue.any(-1)  # (Q,)

    def loss_of(anchors: Tensor, targets: Tensor, false_negatives: Tensor | None, own: Tensor | None) -> Tensor:
        logits = anchors @ candidates.T / temperature  # (n, W*N)
        if false_negatives is not None:
            others = torch.arange(len(candidates), device=logits.device) != targets[:, None]  # (n, W*N)
            logits = logits.masked_fill(false_negatives & others, -torch.inf)
        if queue is not None:
            left_out = empty if own is None else own | empty  # (Q,) or (n, Q)
            further = (anchors @ queue.T / temperature).masked_fill(left_out, -torch.inf)
            logits = torch.cat([logits, further], dim=-1)  # (n, W*N + Q)
        return cross_entropy(logits, targets)

    return mean_over_anchors(loss_of, anchors, targets, false_negatives, own)


@dataclass
class Contrast(Term):
    """InfoNCE, with the further negatives of a queue where there is one, and without those that are near."""

    name = "contrast"
    title = "contrast"
    paper = "simcse"
    smallest_batch = 2  # one negative

    temperature: float = option(0.05, "Scale of the cosines in the contrast.")

    def check(self) -> None:
        fits = 0 < self.temperature < math.inf
        require(fits, "temperature", self.temperature, "a number above 0 (the papers use 0.05)")

    def loss(self, views: Views) -> dict[str, Tensor]:
        earlier, ids = views.heads.get("queue", (None, None))
        own = None if ids is None else known_pairs(views.same, ids)
        return {"contrast": contrast(views.z1, views.z2, self.temperature, earlier, own, views.false_negatives)}


SIMCSE_ROWS = {  # Gao et al. (2021), appendix A
    ("bert", 768): PaperRow("SimCSE, appendix A, bert-base", 64, 3e-5),
    ("bert", 1024): PaperRow("SimCSE, appendix A, bert-large", 64, 1e-5),
    ("roberta", 768): PaperRow("SimCSE, appendix A, roberta-base", 512, 1e-5),
    ("roberta", 1024): PaperRow("SimCSE, appendix A, roberta-large", 512, 3e-5),
}
