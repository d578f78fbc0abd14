"""Sentences to embeddings, and the poolers by name."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from informin.encoders.architectures import OFFSET_POSITIONS

POOLERS = ("cls", "mean", "first_last", "embeddings_last", "last2", "mlp")


@torch.inference_mode()
def encode(
    model,
    tokenizer,
    sentences: Sequence[str],
    batch_size: int = 64,
    poolers: Sequence[str] = ("cls",),
    length: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> dict[str, np.ndarray]:
    """The embeddings of sentences, longest first so that batches hold little padding, by every pooler in one pass.

    Args:
        model: an encoder whose output has `last_hidden_state`; left in the mode it was in.
        batch_size: sentences per forward pass.
        poolers: of `POOLERS`; see `pool`.
        length: sentences are cut at this many tokens; None for the model's own maximum.
        progress: called after each batch with the number of its sentences.

    Returns:
        For each pooler (N, d) float32, in the order of `sentences`.
    """
    embeddings = {pooler: np.empty((len(sentences), model.config.hidden_size), np.float32) for pooler in poolers}
    if not sentences:
        return embeddings
    was_training = model.training
    model.eval()
    extra = {"output_hidden_states": True} if set(poolers) - {"cls", "mean", "mlp"} else {}
    length = length or max_length(model.config, tokenizer)
    tokens = tokenizer(list(sentences), truncation=True, max_length=length)["input_ids"]
    order = sorted(range(len(tokens)), key=lambda i: -len(tokens[i]))
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        batch = tokenizer.pad({"input_ids": [tokens[i] for i in rows]}, return_tensors="pt").to(model.device)
        mask = batch["attention_mask"]
        output = model(input_ids=batch["input_ids"], attention_mask=mask, **extra)
        layers = output.hidden_states if extra else (output.last_hidden_state,)
        for pooler in poolers:
            pooled = model.mlp(layers[-1][:, 0]) if pooler == "mlp" else pool(pooler, layers, mask)
            embeddings[pooler][rows] = pooled.float().cpu().numpy()
        if progress:
            progress(len(rows))
    model.train(was_training)
    return embeddings


def pool(pooler: str, layers: Sequence[Tensor], mask: Tensor) -> Tensor:
    """(N, d): one vector for each of N sentences of L tokens.

    * `cls`: the first token's last hidden state.
    * `mean`: the mean over the tokens of the last layer.
    * `first_last`: the mean of the first and the last layer (SimCSE's code; BERT-base: 60.73 STS average).
    * `embeddings_last`: of the embedding layer and the last layer (the papers' "first-last avg"; BERT-base: 56.70).
    * `last2`: of the last two layers.

    `mlp`, the projection head on `cls`, is the model's own.

    Args:
        layers: hidden states (N, L, d) from the embedding layer to the last; for `cls` and `mean` the last is enough.
        mask: (N, L), 1 at tokens, 0 at padding.
    """
    if pooler == "cls":
        return layers[-1][:, 0]
    chosen = {"mean": (-1,), "first_last": (1, -1), "embeddings_last": (0, -1), "last2": (-2, -1)}[pooler]
    hidden = sum(layers[i] for i in chosen) / len(chosen)  # (N, L, d)
    weights = mask[..., None].to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)


def max_length(config, tokenizer) -> int:
    """The longest input the model takes, in tokens."""
    positions = config.max_position_embeddings
    if config.model_type in OFFSET_POSITIONS:
        positions -= config.pad_token_id + 1
    return min(positions, tokenizer.model_max_length)
