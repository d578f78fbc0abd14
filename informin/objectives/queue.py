"""Queue of negatives from earlier batches, encoded by a momentum encoder (MoCo)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from informin.errors import UsageError
from informin.objectives.terms import Head, Term, check_value, option


class MomentumQueue(Head):
    """Queue of embeddings (Q, d) of earlier sentences, from an encoder whose weights are a moving average.

    Source:
        He et al. (2020), MoCo, section 3.2; Klein and Nabi (2023), miCSE.
    """

    embeddings: Tensor
    ids: Tensor

    def __init__(self, model: Any, size: int, decay: float, dropout: float):
        super().__init__()
        self.encoder = model.momentum_encoder(dropout).requires_grad_(False)
        self.decay = decay
        self.register_buffer("embeddings", torch.zeros(size, model.config.hidden_size))
        self.register_buffer("ids", torch.zeros(size, dtype=torch.int64))
        self.to(model.device)

    def forward(self, model, projection, input_ids, attention_mask, sentence_ids, gather) -> tuple[Tensor, Tensor]:
        """Return the queue (Q, d) before this batch and the ids (Q,) of its sentences, then add the batch to the queue.

        Empty slots are rows of zeros. The embeddings from all processes enter the queue, and the oldest ones leave.
        """
        size = len(sentence_ids)
        earlier = self.embeddings.clone(), self.ids.clone()
        with torch.no_grad():
            embeddings = model.embed_with(self.encoder, input_ids[:size], attention_mask[:size])
            self.enqueue(gather(model.project(embeddings)), gather(sentence_ids))
        return earlier

    @torch.no_grad()
    def enqueue(self, keys: Tensor, ids: Tensor) -> None:
        """Insert embeddings (K, d) and the ids (K,) of their sentences at the front, and drop the oldest."""
        self.embeddings.copy_(torch.cat([keys.to(self.embeddings.dtype), self.embeddings])[: len(self.embeddings)])
        self.ids.copy_(torch.cat([ids, self.ids])[: len(self.ids)])

    @torch.no_grad()
    def after_step(self, model) -> None:
        """Update the momentum encoder: m <- decay * m + (1 - decay) * theta (He et al., 2020, eq. 2)."""
        for slow, fast in zip(self.encoder.parameters(), model.base_model.parameters()):
            slow.lerp_(fast, 1 - self.decay)


@dataclass
class Queue(Term):
    """Adds embeddings of earlier batches as negatives to the contrastive loss.

    Use it if memory limits the batch size. Adds no value to the loss itself. Also known as a momentum queue, or memory
    bank. An anchor's own sentence in the queue does not count as its negative.

    Source:
        He et al. (2020), MoCo, section 3.2; Klein and Nabi (2023), miCSE.
    """

    name = "queue"
    title = "momentum queue"
    weight = "queue_size"
    paper = "micse"
    summand = False
    follows_weights = True
    fixed = ("queue_size",)

    queue_size: int = option(
        0, "Number of embeddings from earlier batches to use as further negatives in the contrastive loss."
    )
    momentum_decay: float = option(0.995, "Decay of the momentum encoder's moving average.")
    momentum_dropout: float = option(0.3, "Dropout rate of the momentum encoder.")

    def check(self) -> None:
        check_value(0 < self.momentum_decay < 1, "momentum_decay", self.momentum_decay, "a fraction between 0 and 1")
        fits = 0 <= self.momentum_dropout < 1
        check_value(fits, "momentum_dropout", self.momentum_dropout, "0 or more, and below 1")

    def head(self, model) -> MomentumQueue:
        return MomentumQueue(model, self.queue_size, self.momentum_decay, self.momentum_dropout)

    def check_sentences(self, number: float) -> None:
        if self.queue_size > number:
            raise UsageError(
                f"is {self.queue_size}, but the run uses only {number} sentences",
                option="queue_size",
                needed=f"at most {number}",
                fix="Reduce it, or add sentences or steps.",
            )
