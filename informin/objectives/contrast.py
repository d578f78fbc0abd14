"""Contrastive loss with in-batch negatives."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from informin.distributed import gather_with_gradient, rank
from informin.errors import UsageError
from informin.objectives.false_negatives import copies
from informin.objectives.numerics import in_float32, mean_over_anchors
from informin.objectives.terms import PaperRow, Term, Views, check_value, needed, option


@in_float32
def contrast(
    z1: Tensor,
    z2: Tensor,
    temperature: float = 0.05,
    queue: Tensor | None = None,
    queue_false_negatives: Tensor | None = None,
    negative_weights: Tensor | None = None,
) -> Tensor:
    r"""Contrastive loss: pull together two views of a sentence and push it away from the other sentences in the batch.

    Use it to train on unlabeled sentences, with two dropout views of each sentence. It is the base of SimCSE, miCSE and
    InforMin-CL. Use large batches, or a queue, for more negatives. If many sentences of a batch have the same meaning,
    give these false negatives a lower weight (see `FalseNegatives`).

    Also known as InfoNCE, NT-Xent, MultipleNegativesRankingLoss, or softmax loss with in-batch negatives. With `queue`
    it is the loss of MoCo; with weights of 0 and 1, that of GISTEmbed.

        loss = mean_i -log( exp(s_ii) / (exp(s_ii) + sum_{k != i} w_ik exp(s_ik)) )
        s_ik = cos(z1_i, z2_k) / temperature

    The weights w are 1 by default.

    With several processes, each uses its own anchors and the candidates of all processes, gathered with gradient. The
    mean over processes then equals a single process on the joined batch, in value and gradient.

    Args:
        z1: First views (the anchors), (N, d). Any floating-point type; computed in float32, even under autocast.
        z2: Second views (the candidates), (N, d).
        temperature: Divides the cosines; above 0.
        queue: Further negatives without gradient, (Q, d), the same in every process. Rows of zeros are empty slots and
            are ignored.
        queue_false_negatives: True where a queue entry must not be an anchor's negative, such as an earlier embedding
            of the same sentence, (N, Q) bool.
        negative_weights: Weight w_ik of each candidate of the W processes as a negative of each anchor, 0 or more,
            (N, W*N). 0 leaves a candidate out. Does not affect the anchor's own second view and the queue.

    Returns:
        The mean loss over the local anchors, a scalar.

    Raises:
        UsageError: The batch has only one sentence, so there are no negatives.

    Source:
        Gao et al. (2021), SimCSE, eq. 4; Chen et al. (2022), InforMin-CL, eq. 4 (printed without the minus and with a
        constant factor 1/N in the logarithm). Queue: He et al. (2020), MoCo, section 3.2; Klein and Nabi (2023), miCSE.

    Example:
        >>> import torch
        >>> z1 = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> z2 = torch.tensor([[0.8, 0.6], [0.6, 0.8]])
        >>> contrast(z1, z2, temperature=0.1)
        tensor(0.1269)
    """
    anchors = normalize(z1.float(), dim=-1)  # (N, d)
    candidates = gather_with_gradient(normalize(z2.float(), dim=-1))  # (W*N, d)
    if len(candidates) < 2:
        raise UsageError(
            "The batch has 1 sentence, so the contrastive loss has no negatives",
            fix="Use a `per_device_train_batch_size` of 2 or more.",
        )
    targets = rank() * len(anchors) + torch.arange(len(anchors), device=anchors.device)
    if queue is not None:
        queue = normalize(queue.detach().float(), dim=-1)
        empty = ~queue.any(-1)  # (Q,)

    def loss_of(anchors: Tensor, targets: Tensor, weights: Tensor | None, excluded: Tensor | None) -> Tensor:
        logits = anchors @ candidates.T / temperature  # (n, W*N)
        if weights is not None:
            positive = torch.arange(len(candidates), device=logits.device) == targets[:, None]  # (n, W*N)
            logits = logits + weights.masked_fill(positive, 1).log()  # w exp(s) = exp(s + log w)
        if queue is not None:
            ignored = empty if excluded is None else excluded | empty  # (Q,) or (n, Q)
            further = (anchors @ queue.T / temperature).masked_fill(ignored, -torch.inf)
            logits = torch.cat([logits, further], dim=-1)  # (n, W*N + Q)
        return cross_entropy(logits, targets)

    return mean_over_anchors(loss_of, anchors, targets, negative_weights, queue_false_negatives)


@dataclass
class Contrast(Term):
    """Contrastive loss, with the negatives of `Queue` and the weights of `FalseNegatives` if these are on."""

    name = "contrast"
    title = "contrast"
    paper = "simcse"
    smallest_batch = 2  # one negative

    temperature: float = option(0.05, "Temperature of the contrastive loss.")

    def check(self) -> None:
        fits = 0 < self.temperature < math.inf
        check_value(fits, "temperature", self.temperature, "a number above 0 (the papers use 0.05)")

    def loss(self, views: Views) -> dict[str, Tensor]:
        earlier, ids = views.heads.get("queue", (None, None))
        excluded = None if ids is None else copies(needed(views.sentence_ids), ids)
        return {"contrast": contrast(views.z1, views.z2, self.temperature, earlier, excluded, views.negative_weights)}


SIMCSE_ROWS = {  # Gao et al. (2021), appendix A
    ("bert", 768): PaperRow("SimCSE, appendix A, bert-base", 64, 3e-5),
    ("bert", 1024): PaperRow("SimCSE, appendix A, bert-large", 64, 1e-5),
    ("roberta", 768): PaperRow("SimCSE, appendix A, roberta-base", 512, 1e-5),
    ("roberta", 1024): PaperRow("SimCSE, appendix A, roberta-large", 512, 3e-5),
}
