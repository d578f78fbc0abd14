"""Embed without padding and on all cores: the exact embeddings of a SentenceTransformer in less time.

    model = informin.speed_up(SentenceTransformer("all-MiniLM-L6-v2"))

`model.encode` then runs BERT and RoBERTa layers on packed batches (`informin.models.packing`), on a CPU one batch per
core, and so does `encode(output_value=None)`, which also returns the last hidden states. Models of other architectures,
and calls with other outputs, are computed as before.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from torch import Tensor
from torch.nn.functional import normalize
from tqdm import tqdm

from informin.models.cpu_parts import parallel_map
from informin.models.packing import OFFSET_POSITIONS, can_pack, packed_forward

__all__ = ["OFFSET_POSITIONS", "speed_up"]
# Tokens per packed forward pass. With up to 4,096 floats per token, the largest activation stays below 32 MiB. The C
# library (glibc) returns larger blocks to the system, so each layer would wait for new pages.
PACKED_TOKENS = 2000
TEXTS = 8_192  # tokenized at once
POOLINGS = {"cls": "cls", "mean": "mean", "lasttoken": "last"}


def speed_up(model: SentenceTransformer) -> SentenceTransformer:
    """Make `encode` of a model faster, with the same embeddings up to rounding (about 1e-7), and return the model.

    The model must consist of a BERT or RoBERTa, a pooling of [CLS], the mean or the last token, and any further modules
    that read only the sentence embedding. Other models are returned unchanged.

    Example:
        >>> model = informin.speed_up(SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2"))
        >>> embeddings = model.encode(sentences)
    """
    if is_packable(model):
        model._inference = PackedInference(model)
    return model


def is_packable(model: SentenceTransformer) -> bool:
    """Return whether a model has the structure that packed embedding needs."""
    modules = list(model)
    return (
        len(modules) > 1
        and type(modules[0]) is Transformer
        and can_pack(modules[0].auto_model)
        and not getattr(modules[0].config, "output_hidden_states", False)
        and type(modules[1]) is Pooling
        and modules[1].pooling_mode in POOLINGS
        and modules[1].include_prompt
        and {type(module).__name__ for module in modules[2:]} <= {"Normalize", "Dense", "Dropout", "LayerNorm"}
    )


class PackedInference:
    """Replaces `SentenceTransformer._inference`, which `encode` calls."""

    def __init__(self, model: SentenceTransformer):
        self.model = model

    def __call__(self, inputs: list, *, device: Any = None, **options: Any) -> Any:
        """Return what `_inference` returns; see `SentenceTransformer.encode` for the options."""
        model = self.model
        packs = (
            options["output_value"] in ("sentence_embedding", None)
            and all(isinstance(text, str) for text in inputs)
            and model.device.type == "cpu"  # on a GPU, attention by runs would launch many small kernels
            and str(device or "cpu") == "cpu"
            and model[0].tokenizer.padding_side == "right"
            and not options.keys() - {*OPTIONS, "task"}
            and is_packable(model)
        )
        if not packs or not inputs:
            return type(model)._inference(model, inputs, device=device, **options)
        return self._embed(inputs, **{name: options[name] for name in OPTIONS if name in options})

    @torch.inference_mode()
    def _embed(
        self,
        inputs: list[str],
        prompt: str | None,
        batch_size: int,
        show_progress_bar: bool,
        output_value: str | None,
        normalize_embeddings: bool,
        truncate_dim: int | None,
        **_: Any,
    ) -> Tensor | list[dict[str, Tensor]]:
        model = self.model.eval()
        encoder = model[0].auto_model
        pooling = POOLINGS[model[1].pooling_mode]
        with_tokens = output_value is None
        parts: list[Tensor] = []
        token_parts: list[dict[str, Tensor]] = []

        def forward(batch: tuple[Tensor, Tensor]) -> Tensor | list[dict[str, Tensor]]:
            ids, mask = batch
            pooled, hidden = packed_forward(encoder, ids, mask, pooling, mask.bool() if with_tokens else None)
            features = {"sentence_embedding": pooled}
            for module in list(model)[2:]:
                features = module(features)
            vectors = features["sentence_embedding"][:, :truncate_dim]
            if normalize_embeddings:
                vectors = normalize(vectors, dim=1)
            return vectors if hidden is None else token_outputs(ids, mask, hidden, vectors)

        with tqdm(total=len(inputs), desc="Batches", disable=not show_progress_bar) as bar:
            for start in range(0, len(inputs), TEXTS):
                features = model.preprocess(inputs[start : start + TEXTS], prompt=prompt)
                ids, mask = features["input_ids"], features["attention_mask"]
                rows = list(batches(mask.sum(1), batch_size))
                lengths = [int(mask[batch].sum(1).max()) for batch in rows]
                tokens = [(ids[batch, :length], mask[batch, :length]) for batch, length in zip(rows, lengths)]
                with parallel_map(len(rows)) as run:
                    results = []
                    for batch, outputs in zip(rows, run(forward, tokens)):
                        results.append(outputs)
                        bar.update(len(batch))
                order = torch.from_numpy(np.argsort(np.concatenate(rows)))
                if with_tokens:
                    outputs = list(chain.from_iterable(results))
                    token_parts.extend(outputs[place] for place in order)
                else:
                    parts.append(torch.cat(results)[order])
        return token_parts if with_tokens else torch.cat(parts).float()


def token_outputs(ids: Tensor, mask: Tensor, hidden: Tensor, vectors: Tensor) -> list[dict[str, Tensor]]:
    """Return what `encode(output_value=None)` returns for each of N texts, without padding.

    Args:
        ids: (N, L), with the mask (N, L).
        hidden: Last hidden states (T, d) of the tokens that are not padding.
        vectors: (N, d) embeddings.
    """
    lengths = mask.sum(1).tolist()
    parts = zip(ids[mask.bool()].split(lengths), hidden.split(lengths), vectors)
    names = ("input_ids", "token_embeddings", "sentence_embedding")
    return [dict(zip(names, part)) | {"attention_mask": torch.ones_like(part[0])} for part in parts]


OPTIONS = (
    *("prompt", "batch_size", "show_progress_bar", "output_value", "save_to_cpu", "normalize_embeddings"),
    "truncate_dim",
)


def batches(lengths: Tensor, batch_size: int) -> Iterator[Sequence[int]]:
    """Split texts, the longest first, into batches of at most `batch_size` texts and `PACKED_TOKENS` tokens.

    Args:
        lengths: Number of tokens of each text, (N,). A longer text is a batch of its own.
        batch_size: Texts per batch, at most.

    Returns:
        The indices of the texts of each batch.
    """
    order = lengths.argsort(descending=True, stable=True).tolist()
    start = 0
    while start < len(order):
        size = min(batch_size, max(1, PACKED_TOKENS // max(1, int(lengths[order[start]]))))
        yield order[start : start + size]
        start += size
