"""Sentences to embeddings, and the poolers by name."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor
from torch.nn.functional import normalize
from transformers import PreTrainedModel

import modeling_informin
from informin.encoders.architectures import OFFSET_POSITIONS
from informin.encoders.packing import can_pack, read_packed
from informin.encoders.usage import Usage, reading_length, usage_of_settings
from modeling_informin import POOLINGS

POOLERS = (*POOLINGS, "first_last", "embeddings_last", "last2", "mlp")


@torch.inference_mode()
def encode(
    model,
    tokenizer,
    sentences: Sequence[str],
    batch_size: int = 64,
    poolers: Sequence[str] = ("cls",),
    length: int | None = None,
    progress: Callable[[int], object] | None = None,
    prompt: str = "",
    normalized: bool = False,
) -> dict[str, np.ndarray]:
    """The embeddings of sentences, longest first so that batches hold little padding, by every pooler in one pass.

    Args:
        model: an encoder whose output has `last_hidden_state`; left in the mode it was in.
        batch_size: sentences per forward pass.
        poolers: of `POOLERS`; see `pool`.
        length: sentences are cut at this many tokens; None for the model's own maximum.
        progress: called after each batch with the number of its sentences.
        prompt: is put before every sentence.
        normalized: scales embeddings to length 1.

    Returns:
        For each pooler (N, d) float32, in the order of `sentences`.
    """
    embeddings = {pooler: np.empty((len(sentences), model.config.hidden_size), np.float32) for pooler in poolers}
    if not sentences:
        return embeddings
    was_training = model.training
    model.eval()
    extra = {"output_hidden_states": True} if set(poolers) - {*POOLINGS, "mlp"} else {}
    packed = not extra and len(poolers) == 1 and "mlp" not in poolers and _packs(model)
    length = length or max_length(model.config, tokenizer)
    tokens = tokenizer([prompt + sentence for sentence in sentences], truncation=True, max_length=length)["input_ids"]
    order = sorted(range(len(tokens)), key=lambda i: -len(tokens[i]))
    try:
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            batch = tokenizer.pad({"input_ids": [tokens[i] for i in rows]}, return_tensors="pt").to(model.device)
            ids, mask = batch["input_ids"], batch["attention_mask"]
            if packed:
                pooled = {pooler: read_packed(model.base_model, ids, mask, pooler)[0] for pooler in poolers}
            else:
                output = model(input_ids=ids, attention_mask=mask, **extra)
                layers = output.hidden_states if extra else (output.last_hidden_state,)
                pooled = {pooler: _pooled(model, pooler, layers, mask) for pooler in poolers}
            for pooler, x in pooled.items():
                embeddings[pooler][rows] = (normalize(x.float()) if normalized else x.float()).cpu().numpy()
            if progress:
                progress(len(rows))
    finally:  # progress may raise
        model.train(was_training)
    return embeddings


def _packs(model) -> bool:
    """Whether to read without padding; on a GPU attention by runs would be many small launches."""
    return isinstance(model, PreTrainedModel) and model.device.type == "cpu" and can_pack(model.base_model)


def _pooled(model, pooler: str, layers: Sequence[Tensor], mask: Tensor) -> Tensor:
    return model.mlp(model.pool(layers[-1], mask)) if pooler == "mlp" else pool(pooler, layers, mask)


def embed(
    model,
    tokenizer,
    sentences: Sequence[str],
    batch_size: int = 64,
    usage: Usage | None = None,
    progress: Callable[[int], object] | None = None,
) -> np.ndarray:
    """(N, d) float32, the embeddings of N sentences as `usage` says that they are read; see `encode`.

    Without `usage` the settings of the model say it, which is then one of ours.
    """
    usage = usage or usage_of_settings(model.config.informin)
    how = {
        "length": longest_read(model, tokenizer, usage),
        "prompt": usage.prompt,
        "normalized": usage.normalize,
        "progress": progress,
    }
    return encode(model, tokenizer, sentences, batch_size, (usage.pooling,), **how)[usage.pooling]


def pool(pooler: str, layers: Sequence[Tensor], mask: Tensor) -> Tensor:
    """(N, d): one vector for each of N sentences of L tokens.

    * `cls`, `mean`, `last`: the first token, the mean over the tokens, the last token, of the last layer.
    * `first_last`: the mean of the first and the last layer (SimCSE's code; BERT-base: 60.73 STS average).
    * `embeddings_last`: of the embedding layer and the last layer (the papers' "first-last avg"; BERT-base: 56.70).
    * `last2`: of the last two layers.

    `mlp`, the projection head on the embedding, is the model's own.

    Args:
        layers: hidden states (N, L, d) from the embedding layer to the last; for the first three the last is enough.
        mask: (N, L), 1 at tokens, 0 at padding.
    """
    if pooler in POOLINGS:
        return modeling_informin.pool(pooler, layers[-1], mask)
    chosen = {"first_last": (1, -1), "embeddings_last": (0, -1), "last2": (-2, -1)}[pooler]
    return modeling_informin.pool("mean", sum(layers[i] for i in chosen) / len(chosen), mask)


def max_length(config, tokenizer) -> int:
    """The longest input the model takes, in tokens."""
    positions = config.max_position_embeddings
    if config.model_type in OFFSET_POSITIONS:
        positions -= config.pad_token_id + 1
    return min(positions, tokenizer.model_max_length)


def longest_read(model, tokenizer, usage: Usage | None = None) -> int:
    """The most tokens that are read of a sentence: what the model takes, or less where its settings say so.

    Args:
        usage: None for what the settings of the model say.
    """
    usage = usage or usage_of_settings(model.config.informin)
    return reading_length(max_length(model.config, tokenizer), usage)


def join_shares(x: np.ndarray, accelerator: Accelerator) -> np.ndarray:
    """Every process's rows (n, d) of an array whose rows were dealt out in turn, put together again, in every process.

    Shares that are one short are padded: the rows (N, d) that were dealt out come first.
    """
    if accelerator.num_processes == 1:
        return x
    padded = accelerator.pad_across_processes(torch.from_numpy(x).to(accelerator.device))
    gathered = accelerator.gather(padded).cpu().numpy()  # process after process
    shares = gathered.reshape(accelerator.num_processes, -1, gathered.shape[-1])
    return shares.swapaxes(0, 1).reshape(-1, gathered.shape[-1])
