"""Negatives of earlier batches: a queue of embeddings of a momentum encoder, which follows the encoder slowly."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from informin.errors import UsageError
from informin.objectives.terms import Head, Term, option, require


class MomentumQueue(Head):
    """Embeddings of earlier sentences (Q, d) by an encoder that is a moving average of the one in training.

    Source:
        He et al. (2020), MoCo, section 3.2; Klein & Nabi (2023).
    """

    def __init__(self, model: nn.Module, size: int, decay: float, dropout: float):
        super().__init__()
        config = copy.deepcopy(model.config)
        config._attn_implementation = None  # transformers' own choice, whatever stands in for it in the encoder
        for name in model.dropouts:
            setattr(config, name, dropout)
        with torch.random.fork_rng(devices=[]):  # the weights that are drawn here are not kept
            self.encoder = type(model)(config).base_model
        self.encoder.load_state_dict(model.base_model.state_dict())
        self.encoder.requires_grad_(False)
        self.decay = decay
        self.register_buffer("embeddings", torch.zeros(size, model.config.hidden_size))
        self.register_buffer("ids", torch.zeros(size, dtype=torch.int64))
        self.to(model.device)

    def forward(self, model, projection, input_ids, attention_mask, sentence_ids, gather) -> tuple[Tensor, Tensor]:
        """The queue (Q, d) before this batch, zeros where there is none yet, and the ids (Q,) of its sentences.

        The batch's own embeddings of all processes then enter the queue, and the oldest leave it.
        """
        size = len(sentence_ids)
        earlier = self.embeddings.clone(), self.ids.clone()
        with torch.no_grad():
            embeddings = model.read(self.encoder, input_ids[:size], attention_mask[:size])
            self.enqueue(gather(model.project(embeddings)), gather(sentence_ids))
        return earlier

    @torch.no_grad()
    def enqueue(self, keys: Tensor, ids: Tensor) -> None:
        """Puts keys (K, d) before the queue's, with the ids (K,) of their sentences; the oldest leave."""
        self.embeddings.copy_(torch.cat([keys.to(self.embeddings.dtype), self.embeddings])[: len(self.embeddings)])
        self.ids.copy_(torch.cat([ids, self.ids])[: len(self.ids)])

    @torch.no_grad()
    def after_step(self, model) -> None:
        """Moves the momentum encoder towards the encoder: m <- decay m + (1 - decay) theta (He et al., 2020, eq. 2)."""
        for slow, fast in zip(self.encoder.parameters(), model.base_model.parameters()):
            slow.lerp_(fast, 1 - self.decay)


@dataclass
class Queue(Term):
    """Further negatives for the contrast; no loss of its own."""

    name = "queue"
    title = "negatives of earlier batches"
    weight = "queue_size"
    paper = "micse"
    summand = False
    follows_weights = True
    fixed = ("queue_size",)

    queue_size: int = option(
        0, "Embeddings of earlier batches, of a momentum encoder, that the contrast has as further negatives."
    )
    momentum_decay: float = option(0.995, "Share of itself that the momentum encoder keeps in each step.")
    momentum_dropout: float = option(0.3, "Its dropout, hidden and attention.")

    def check(self) -> None:
        require(0 < self.momentum_decay < 1, "momentum_decay", self.momentum_decay, "a fraction between 0 and 1")
        fits = 0 <= self.momentum_dropout < 1
        require(fits, "momentum_dropout", self.momentum_dropout, "0 or more, and below 1")

    def head(self, model) -> MomentumQueue:
        return MomentumQueue(model, self.queue_size, self.momentum_decay, self.momentum_dropout)

    def require_sentences(self, number: float) -> None:
        if self.queue_size > number:
            raise UsageError(
                f"`queue_size` {self.queue_size} is more than the {number} sentences that the run reads: it would hold "
                "some of them twice, or never be full. Add sentences or steps, or give a `queue_size` of at most "
                f"{number}."
            )
