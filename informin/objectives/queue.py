"""Queue of negatives from earlier batches, encoded by a momentum encoder (MoCo)."""

from typing import Any

import torch
from torch import Tensor

from informin.objectives.terms import Head
from informin.views.attention import copy_with_dropout


class MomentumQueue(Head):
    """Queue of embeddings (Q, d) of earlier sentences, from an encoder whose weights are a moving average.

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
        slow, fast = list(self.encoder.parameters()), list(model.base_model.parameters())
        torch._foreach_lerp_(slow, fast, 1 - self.decay)
