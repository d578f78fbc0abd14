"""Keep embeddings independent of the batch: pad on the right side, and truncate to the positions of the model.

Position embeddings are looked up by a token's place in its row. Padding on the left moves all tokens of a short text,
which changes its embedding, and [CLS] pooling would read a padding token. Decoders with rotary positions may pad left.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import MODEL_FOR_MASKED_LM_MAPPING, PreTrainedTokenizerBase

from informin.errors import UsageError
from informin.models.architectures import OFFSET_POSITIONS

TABLE = re.compile(r"(.*\.)?(wpe|embed_positions|pos_embed\w*|position_embed\w*)")  # names of position embeddings
SAMPLE = ["a", "The price of the old house by the river fell again last year."]
TOLERANCE, HALF_TOLERANCE = 1e-3, 0.05  # of the length of an embedding, the second with weights in bfloat16


def fit_to_positions(model: Any) -> None:
    """Pad on the right where a SentenceTransformer needs it, and truncate texts to the positions that it has."""
    modes = (getattr(module, "pooling_mode", None) for module in model.modules())
    pools_first = any("cls" in ([mode] if isinstance(mode, str) else mode or ()) for mode in modes)
    for transformer in _transformers(model):
        tokenizer, config = transformer.tokenizer, transformer.auto_model.config
        parts = transformer.auto_model.named_modules()
        has_table = any(isinstance(part, nn.Embedding) and TABLE.fullmatch(name) for name, part in parts)
        is_encoder = type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
        if has_table or is_encoder or pools_first:
            tokenizer.padding_side = "right"
        most = getattr(config, "max_position_embeddings", None)
        if has_table and isinstance(most, int):
            offset = (config.pad_token_id or 0) + 1 if config.model_type in OFFSET_POSITIONS else 0
            tokenizer.model_max_length = min(tokenizer.model_max_length, most - offset)


def require_independent(model: Any, name: str, encode: Callable[[Sequence[str]], np.ndarray]) -> None:
    """Pad on the right if padding on the left changes an embedding. Raise UsageError if that does not help either.

    Args:
        model: A SentenceTransformer.
        name: Its Hub id or folder.
        encode: Returns the embeddings (N, d) of N texts in one batch.
    """
    left = [found.tokenizer for found in _transformers(model) if found.tokenizer.padding_side != "right"]
    if not left or _is_independent(model, encode):
        return
    for tokenizer in left:
        tokenizer.padding_side = "right"
    if not _is_independent(model, encode):
        found = f"{name}: the embedding of a text depends on the padding of its batch"
        raise UsageError(found, option="model_name", needed="a model that ignores padding")


def _is_independent(model: Any, encode: Callable[[Sequence[str]], np.ndarray]) -> bool:
    alone, together = encode(SAMPLE[:1])[0], encode(SAMPLE)[0]
    exact = all(weight.dtype == torch.float32 for weight in model.parameters())
    return bool(np.abs(alone - together).max() <= (TOLERANCE if exact else HALF_TOLERANCE) * np.linalg.norm(alone))


def _transformers(model: Any) -> Iterator[Any]:
    """Yield the modules with a transformer and a tokenizer, also those in the routes of a Router."""
    for module in model.modules():
        tokenizer = getattr(module, "tokenizer", None) if hasattr(module, "auto_model") else None
        if isinstance(tokenizer, PreTrainedTokenizerBase):
            yield module
