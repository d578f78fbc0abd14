"""Compute embeddings of sentences with one or more poolings."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

import modeling_informin
from informin.models.architectures import OFFSET_POSITIONS
from informin.models.cpu_threads import parallel_map
from informin.models.embedding_config import EmbeddingConfig, embedding_of
from informin.models.packing import can_pack, packed_forward
from informin.models.texts import as_texts
from modeling_informin import POOLINGS

POOLERS = (*POOLINGS, "first_last", "embeddings_last", "last2", "mlp")
# Tokens per packed forward pass. With up to 4,096 floats per token, the largest activation stays below 32 MiB. The C
# library (glibc) returns larger blocks to the system, so each layer would wait for new pages.
PACKED_TOKENS = 2000


@torch.inference_mode()
def encode(
    model,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    batch_size: int = 64,
    poolers: Sequence[str] = ("cls",),
    length: int | None = None,
    progress: Callable[[int], object] | None = None,
    prompt: str = "",
    normalized: bool = False,
) -> dict[str, np.ndarray]:
    """Return the embeddings of sentences for every pooling, with one forward pass per batch.

    Sentences are sorted by length, the longest first, so that batches contain little padding. On a CPU, batches
    are processed in parallel if there are enough of them.

    Args:
        model: Encoder whose output has `last_hidden_state`. Its training mode is restored.
        tokenizer: Tokenizer of the encoder.
        sentences: N sentences.
        batch_size: Sentences per forward pass, at most. On a CPU, batches of long sentences are smaller.
        poolers: Names from `POOLERS`; see `pool`.
        length: Maximum number of tokens per sentence; None for the model's maximum.
        progress: Called after each batch with its number of sentences.
        prompt: Text before every sentence.
        normalized: Scale embeddings to unit length.

    Returns:
        For each pooling (N, d) float32, in the order of `sentences`.
    """
    sentences = as_texts(sentences)
    embeddings = {pooler: np.empty((len(sentences), model.config.hidden_size), np.float32) for pooler in poolers}
    if not sentences:
        return embeddings
    was_training = model.training
    model.eval()
    extra = {"output_hidden_states": True} if set(poolers) - {*POOLINGS, "mlp"} else {}
    # On a GPU, attention by runs would launch many small kernels.
    packs = isinstance(model, PreTrainedModel) and model.device.type == "cpu" and can_pack(model.base_model)
    packed = packs and not extra and len(poolers) == 1 and "mlp" not in poolers
    length = length or max_length(model.config, tokenizer)
    tokens = tokenizer([prompt + sentence for sentence in sentences], truncation=True, max_length=length)["input_ids"]
    order = sorted(range(len(tokens)), key=lambda i: -len(tokens[i]))
    batches = list(_batches(order, tokens, batch_size, PACKED_TOKENS if packed else None))

    def forward(rows: Sequence[int]) -> dict[str, np.ndarray]:
        batch = tokenizer.pad({"input_ids": [tokens[i] for i in rows]}, return_tensors="pt").to(model.device)
        ids, mask = batch["input_ids"], batch["attention_mask"]
        if packed:
            pooled = {pooler: packed_forward(model.base_model, ids, mask, pooler)[0] for pooler in poolers}
        else:
            output = model(input_ids=ids, attention_mask=mask, **extra)
            layers = output.hidden_states if extra else (output.last_hidden_state,)
            pooled = {name: pool(name, layers, mask) for name in poolers if name != "mlp"}
            if "mlp" in poolers:
                pooled["mlp"] = model.mlp(model.pool(layers[-1], mask))
        return {name: (normalize(x.float()) if normalized else x.float()).cpu().numpy() for name, x in pooled.items()}

    try:
        with parallel_map(len(batches)) if packed else nullcontext(map) as run:
            for rows, pooled in zip(batches, run(forward, batches)):
                for pooler, x in pooled.items():
                    embeddings[pooler][rows] = x
                if progress:
                    progress(len(rows))
    finally:  # progress may raise
        model.train(was_training)
    return embeddings


def _batches(
    order: Sequence[int], tokens: Sequence[Sequence[int]], batch_size: int, most: int | None
) -> Iterator[Sequence[int]]:
    """Split indices of sentences, the longest first, into batches of at most `most` tokens; None for no limit.

    A longer sentence is a batch of its own.
    """
    start = 0
    while start < len(order):
        longest = max(1, len(tokens[order[start]]))
        size = min(batch_size, max(1, most // longest)) if most else batch_size
        yield order[start : start + size]
        start += size


def embed(
    model,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    batch_size: int = 64,
    embedding: EmbeddingConfig | None = None,
    progress: Callable[[int], object] | None = None,
) -> np.ndarray:
    """Return the embeddings (N, d) float32 of N sentences; see `encode`.

    Args:
        model: Encoder.
        tokenizer: Tokenizer of the encoder.
        sentences: N sentences.
        batch_size: Sentences per forward pass.
        embedding: Pooling, prompt, maximum length and normalization; None for those in the model's settings.
        progress: Called after each batch with its number of sentences.
    """
    embedding = embedding or embedding_of(model)
    assert embedding.pooling is not None
    return encode(
        model,
        tokenizer,
        sentences,
        batch_size,
        (embedding.pooling,),
        length=longest_read(model, tokenizer, embedding),
        prompt=embedding.prompt,
        normalized=embedding.normalize,
        progress=progress,
    )[embedding.pooling]


def pool(pooler: str, layers: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Return one vector (N, d) for each of N sentences of L tokens.

    * `cls`, `mean`, `last`: the first token, the mean over all tokens, or the last token of the last layer.
    * `first_last`: the mean of the first and the last layer (SimCSE's code; BERT-base: 60.73 STS average).
    * `embeddings_last`: the mean of the embedding layer and the last layer (the papers' "first-last avg"; BERT-base:
      56.70).
    * `last2`: the mean of the last two layers.

    The model itself computes `mlp`, the projection head on the embedding.

    Args:
        pooler: One of the names above.
        layers: Hidden states (N, L, d) from the embedding layer to the last; the last is enough for the first three.
        mask: (N, L), 1 for tokens, 0 for padding.
    """
    if pooler in POOLINGS:
        return modeling_informin.pool(pooler, layers[-1], mask)
    first, last = {"first_last": (1, -1), "embeddings_last": (0, -1), "last2": (-2, -1)}[pooler]
    return modeling_informin.pool("mean", (layers[first] + layers[last]) / 2, mask)


def max_length(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the maximum number of tokens that the model accepts."""
    positions = config.max_position_embeddings
    if config.model_type in OFFSET_POSITIONS:
        positions -= config.pad_token_id + 1
    return min(positions, tokenizer.model_max_length)


def longest_read(model, tokenizer: PreTrainedTokenizerBase, embedding: EmbeddingConfig | None = None) -> int:
    """Return the maximum number of tokens per sentence: that of the model, or of its settings if that is smaller.

    Args:
        model: Encoder.
        tokenizer: Tokenizer of the encoder.
        embedding: The settings; None for those of the model.
    """
    return (embedding or embedding_of(model)).max_length(max_length(model.config, tokenizer))
