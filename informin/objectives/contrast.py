"""Contrastive loss with in-batch negatives."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from informin.distributed import gather_with_gradient, own_places
from informin.errors import UsageError
from informin.objectives.numerics import in_float32, mean_over_anchors
from informin.objectives.term import Guide, GuideNeeds, Head, Term, Views, embeddings_of_guide, needed
from informin.options import check_value, option
from informin.views.encoder import copy_with_dropout
from modeling_informin import HeadInputs

SIMILARITIES = ("guide", "model")


@in_float32
def false_negative_mask(x1: Tensor, x2: Tensor, threshold: float | Tensor) -> Tensor:
    """Find false negatives: candidates whose embeddings are more similar to the anchor's than a threshold.

    Use it with `contrast` on text from one domain, where many sentences of a batch have nearly the same meaning.

    Also known as false-negative filtering, or guided in-sample selection (GISTEmbed, CachedGISTEmbedLoss). GISTEmbed's
    threshold is the similarity of the anchor and its own positive; here one threshold holds for all pairs.

        mask_ik = cos(x1_i, x2_k) > threshold

    Args:
        x1: Unit vectors of the anchors, (N, d).
        x2: Unit vectors of this process's candidates, (N, d).
        threshold: Cosine above which a candidate is a false negative.

    Returns:
        True where one of the candidates of all W processes is a false negative, (N, W*N) bool.

    Source:
        Solatorio (2024), GISTEmbed, section 3.

    Example:
        >>> import torch
        >>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
        >>> false_negative_mask(x, x, threshold=0.7).int()
        tensor([[1, 1, 0],
                [1, 1, 0],
                [0, 0, 1]], dtype=torch.int32)
    """
    return x1 @ gather_with_gradient(x2).T > threshold


@in_float32
def batch_threshold(x1: Tensor, x2: Tensor, fraction: float, left_out: Tensor | None = None) -> Tensor:
    """Find the cosine that a fraction of the batch's pairs of different sentences exceeds, over all W processes.

    Args:
        x1: Unit vectors of this process's anchors, (N, d).
        x2: Unit vectors of this process's candidates, (N, d).
        fraction: Fraction of the pairs, from 0 to below 1; rounded down to a number of pairs.
        left_out: True for more pairs to exclude, such as copies of a sentence, (N, W*N) bool.

    Returns:
        The cosine, a scalar; the largest one of the batch if the fraction is less than one pair.

    Source:
        This project.

    Example:
        >>> import torch
        >>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
        >>> batch_threshold(x, x, fraction=0.4)
        tensor(0.6000)
    """
    cosines = gather_with_gradient(x1) @ gather_with_gradient(x2).T  # (W*N, W*N)
    counts = ~torch.eye(len(cosines), dtype=torch.bool, device=cosines.device)
    if left_out is not None:
        counts &= gather_with_gradient(left_out.float()) == 0
    # The number of pairs stays on the device: reading it would wait for the GPU.
    number = counts.sum()
    ascending = cosines.masked_fill(~counts, -torch.inf).flatten().sort().values
    place = len(ascending) - 1 - number * round(fraction * 10**9) // 10**9  # MPS has no float64
    threshold = ascending.gather(0, place[None])[0]
    return torch.where(number > 0, threshold, torch.inf)  # without pairs there is one sentence, several times


def copies(ids: Tensor, candidates: Tensor) -> Tensor:
    """Return True where a candidate is a copy of the anchor's sentence, and so not a negative, (B, C) bool.

    Args:
        ids: `Views.sentence_ids` of the anchors, (B,) int64.
        candidates: Ids of C candidate sentences, (C,) int64.
    """
    return ids[:, None] == candidates


class MomentumQueue(Head):
    """Queue of projections (Q, d) of earlier sentences, from a moving average of the encoder and the trained head.

    Source:
        He et al. (2020), MoCo, section 3.2; Klein and Nabi (2023), miCSE.
    """

    embeddings: Tensor
    ids: Tensor

    def __init__(self, model: Any, size: int, decay: float, dropout: float):
        super().__init__()
        self.encoder = copy_with_dropout(model.base_model, dropout).requires_grad_(False)
        self.decay = decay
        self.register_buffer("embeddings", torch.zeros(size, model.config.hidden_size))
        self.register_buffer("ids", torch.zeros(size, dtype=torch.int64))
        self.to(model.device)

    def forward(self, model, inputs: HeadInputs) -> tuple[Tensor, Tensor]:
        """Return the queue (Q, d) before this batch and the ids (Q,) of its sentences, then add the batch to the queue.

        Empty slots are rows of zeros. The projections from all processes enter the queue, and the oldest ones leave.
        """
        size = len(inputs.sentence_ids)
        earlier = self.embeddings.clone(), self.ids.clone()
        with torch.no_grad():
            embeddings = model.embed_with(self.encoder, inputs.input_ids[:size], inputs.attention_mask[:size])
            self.enqueue(inputs.gather(model.project(embeddings)), inputs.gather(inputs.sentence_ids))
        return earlier

    @torch.no_grad()
    def enqueue(self, keys: Tensor, ids: Tensor) -> None:
        """Insert projections (K, d) and the ids (K,) of their sentences at the front, and drop the oldest."""
        self.embeddings.copy_(torch.cat([keys.to(self.embeddings.dtype), self.embeddings])[: len(self.embeddings)])
        self.ids.copy_(torch.cat([ids, self.ids])[: len(self.ids)])

    @torch.no_grad()
    def after_step(self, model) -> None:
        """Update the momentum encoder: m <- decay * m + (1 - decay) * theta (He et al., 2020, eq. 2)."""
        slow, fast = list(self.encoder.parameters()), list(model.base_model.parameters())
        torch._foreach_lerp_(slow, fast, 1 - self.decay)


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
    give these false negatives a lower weight (see `Contrast`).

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
        queue: More negatives, without gradient, (Q, d), the same in every process. Rows of zeros are empty slots and
            are ignored.
        queue_false_negatives: True where a queue entry must not be an anchor's negative, such as an earlier embedding
            of the same sentence, (N, Q) bool.
        negative_weights: Weight w_ik of each candidate of the W processes as a negative of each anchor, 0 or more,
            (N, W*N), or bool for weights of 0 and 1. 0 leaves a candidate out. Does not affect the anchor's own second
            view and the queue.

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
    targets = own_places(anchors)
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


QUEUE_FIELDS = ("queue_size", "momentum_decay", "momentum_dropout")
FALSE_NEGATIVE_FIELDS = ("false_negative_fraction", "false_negative_weight", "false_negative_similarity")


@dataclass
class Contrast(Term):
    """Contrastive loss, optionally with a queue of more negatives and with lower weights for false negatives.

    The queue (a momentum queue, or memory bank) holds embeddings of earlier batches. Use it if memory limits the batch
    size. An anchor's own sentence in the queue does not count as its negative.

    False negatives are the most similar pairs of different sentences in a batch. By default they are left out.
    The similarity comes from the guide, or from the trained model's own projections in this step, without gradient.
    Embeddings in the queue always have weight 1. See `contrast` and `false_negative_mask`.

    Source:
        Queue: He et al. (2020), MoCo, section 3.2; Klein and Nabi (2023), miCSE. Weights of false negatives: Chen et
        al. (2022), InforMin-CL, limitations.
    """

    paper = "simcse"
    head_name = "queue"
    smallest_batch = 2  # one negative

    weight: float = option(1.0, "Weight of the contrastive loss.")
    temperature: float = option(0.05, "Temperature of the contrastive loss.")
    queue_size: int = option(
        0, "Number of embeddings from earlier batches to use as further negatives in the contrastive loss."
    )
    momentum_decay: float = option(0.995, "Decay of the moving average of the momentum encoder, which fills the queue.")
    momentum_dropout: float = option(0.3, "Dropout rate of the momentum encoder.")
    false_negative_fraction: float = option(
        0.0, "Fraction of all sentence pairs to treat as false negatives: the most similar ones."
    )
    false_negative_weight: float = option(
        0.0, "Weight of false negatives in the denominator of the contrastive loss; 0 leaves them out."
    )
    false_negative_similarity: str = option(
        "guide",
        "Whose similarities find false negatives: those of the `guide`, or of the trained `model` in each batch.",
        choices=SIMILARITIES,
    )

    def check(self) -> None:
        fits = 0 < self.temperature < math.inf
        check_value(fits, "temperature", self.temperature, "a number above 0 (the papers use 0.05)")
        check_value(self.queue_size >= 0, "queue_size", self.queue_size, "0 (no queue) or more")
        check_value(0 < self.momentum_decay < 1, "momentum_decay", self.momentum_decay, "a fraction between 0 and 1")
        for name in ("momentum_dropout", "false_negative_fraction", "false_negative_weight"):
            value = getattr(self, name)
            check_value(0 <= value < 1, name, value, "0 or more, and below 1")

    def options(self) -> dict[str, Any]:
        unused = ["contrast_weight"] if self.weight == 1 else []  # which is implied
        unused += [] if self.queue_size else QUEUE_FIELDS
        unused += [] if self.false_negative_fraction else FALSE_NEGATIVE_FIELDS
        return {name: value for name, value in super().options().items() if name not in unused}

    @property
    def second_encoder(self) -> str | None:
        return "queue_size" if self.queue_size else None

    @property
    def guide_needs(self) -> GuideNeeds | None:
        is_asked = self.false_negative_fraction > 0 and self.false_negative_similarity == "guide"
        return GuideNeeds() if is_asked else None

    def prepare(self, guide: Guide) -> None:
        super().prepare(guide)
        self._threshold = guide.quantile(self.false_negative_fraction)

    def head(self, model) -> MomentumQueue | None:
        if not self.queue_size:
            return None
        return MomentumQueue(model, self.queue_size, self.momentum_decay, self.momentum_dropout)

    def check_sentences(self, number: float) -> None:
        if self.queue_size > number:
            raise UsageError(
                f"is {self.queue_size}, but the run uses only {number} sentences",
                option="queue_size",
                needed=f"at most {number}",
                fix="Reduce it, or add sentences or steps.",
            )

    def loss(self, views: Views) -> Tensor:
        earlier, ids = views.heads.get(self.head_name, (None, None))
        excluded = None if ids is None else copies(needed(views.sentence_ids), ids)
        return contrast(views.z1, views.z2, self.temperature, earlier, excluded, self._negative_weights(views))

    def _negative_weights(self, views: Views) -> Tensor | None:
        """Return the weight of each candidate as a negative, (B, W*B); 0 for copies of the sentence."""
        if not self.false_negative_fraction:
            return views.negatives
        if self.guide_needs:
            anchors, candidates = embeddings_of_guide(self._guide, views)
            threshold = self._threshold
        else:
            anchors, candidates = (normalize(z.detach().float(), dim=-1) for z in (views.z1, views.z2))
            left_out = None if views.negatives is None else ~views.negatives
            threshold = batch_threshold(anchors, candidates, self.false_negative_fraction, left_out)
        are_false = false_negative_mask(anchors, candidates, threshold)
        weights = torch.where(are_false, self.false_negative_weight, 1.0)
        return weights if views.negatives is None else weights * views.negatives
