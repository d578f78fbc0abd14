"""How an encoder numbers the tokens of a text."""

import re

import numpy as np
from torch import nn

POSITIONS = re.compile(r"(.*\.)?(wpe|embed_positions|pos_embed\w*|position_embed\w*)")  # names of position tables


def padding_index_of(encoder: nn.Module) -> int | None:
    """Return the padding index after which an encoder's position ids start, as in RoBERTa; None if they start at 0."""
    for module in encoder.modules():
        index, table = getattr(module, "padding_idx", None), getattr(module, "position_embeddings", None)
        if isinstance(index, int) and isinstance(table, nn.Embedding):
            return index
    return None


def has_position_table(encoder: nn.Module) -> bool:
    """Return whether position embeddings are looked up by a token's place in its row."""
    parts = encoder.named_modules()
    return any(isinstance(part, nn.Embedding) and POSITIONS.fullmatch(name) for name, part in parts)


def position_ids(tokens: np.ndarray, counts: np.ndarray, ends: np.ndarray, padding_index: int | None) -> np.ndarray:
    """Return the position ids (T,) of packed texts: from 0, or as RoBERTa numbers them, without padding tokens as text.

    Args:
        tokens: (T,), texts that follow each other.
        counts: (S,), their numbers of tokens.
        ends: (S + 1,), where they start and where the last one ends.
        padding_index: See `padding_index_of`.
    """
    if padding_index is None:
        return np.arange(len(tokens)) - ends[:-1].repeat(counts)
    counted = (tokens != padding_index).astype(np.int64)
    total = counted.cumsum()
    before = (total - counted)[ends[:-1]]
    return (total - before.repeat(counts)) * counted + padding_index
