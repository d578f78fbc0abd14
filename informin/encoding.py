"""Sentences to embeddings."""

from collections.abc import Sequence

import numpy as np
import torch


@torch.no_grad()
def encode(model, tokenizer, sentences: Sequence[str], batch_size: int = 64) -> np.ndarray:
    """The [CLS] embeddings of sentences, longest first so that batches hold little padding.

    Args:
        model: one of our encoders (anything whose output has `last_hidden_state`); left in the mode it was in.
        tokenizer: its tokenizer. Sentences are cut only at the model's own maximum.
        batch_size: sentences per forward pass.

    Returns:
        (N, d) float32, in the order of `sentences`.
    """
    if not sentences:
        return np.empty((0, model.config.hidden_size), dtype=np.float32)
    was_training = model.training
    model.eval()
    tokens = tokenizer(list(sentences), truncation=True, max_length=max_length(model.config, tokenizer))["input_ids"]
    order = sorted(range(len(tokens)), key=lambda i: -len(tokens[i]))
    embeddings = np.empty((len(tokens), model.config.hidden_size), dtype=np.float32)
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        batch = tokenizer.pad({"input_ids": [tokens[i] for i in rows]}, return_tensors="pt").to(model.device)
        hidden = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
        embeddings[rows] = hidden[:, 0].float().cpu().numpy()
    model.train(was_training)
    return embeddings


def max_length(config, tokenizer) -> int:
    """The longest input the model takes, in tokens: RoBERTa's positions start after its padding index."""
    positions = config.max_position_embeddings
    if config.model_type == "roberta":
        positions -= config.pad_token_id + 1
    return min(positions, tokenizer.model_max_length)
