"""Embed without padding: the embeddings of a SentenceTransformer in less time.

    model = informin.speed_up(SentenceTransformer("all-MiniLM-L6-v2"))

`model.encode` then runs on packed batches (`informin.models.packing`): on a CPU one batch per core, on a GPU batches of
`GPU_TOKENS` tokens. All modules are called, with their hooks. `encode(output_value=None)`, which also returns the last
hidden states, is packed, too. Models that cannot read packed texts, and calls with other outputs, are computed as
before.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Transformer
from torch import Tensor
from torch.nn.functional import normalize
from tqdm import tqdm

from informin.models.cpu_parts import parallel_map
from informin.models.forward import reads_packed_rows
from informin.models.packing import (
    BF16_ROWS,
    HALF,
    Packed,
    pack_tokens,
    packed_attention_of,
)
from informin.models.positions import has_position_table, padding_index_of

# Tokens per packed forward pass. On a CPU, with up to 4,096 floats per token, the largest activation stays below
# 32 MiB. The C library (glibc) returns larger blocks to the system, so each layer would wait for new pages.
CPU_TOKENS, GPU_TOKENS = 2_000, 32_768
TOKENIZED_AT_ONCE = 8_192  # tokenized at once, while the texts before them are embedded
UNPADDED = {"padding": False, "return_attention_mask": False, "return_token_type_ids": False}  # of the tokenizer
KEPT_FEATURES = ("modality", "prompt_length")  # features that the modules read beside tokens
Model = TypeVar("Model")
Made = TypeVar("Made")


def speed_up(model: SentenceTransformer) -> SentenceTransformer:
    """Make `encode` of a model faster, with the same embeddings up to rounding (about 1e-7), and return the model.

    The model must consist of a Transformer that takes attention functions (most encoders and decoders of transformers),
    a Pooling, and any further modules that read only the sentence embedding. Others are computed as before.

    Example:
        >>> model = informin.speed_up(SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2"))
        >>> embeddings = model.encode(sentences)
    """
    if type(model[0]) is Transformer:
        model._inference = PackedInference(model)
    return model


class PackedInference:
    """Replaces `SentenceTransformer._inference`, which `encode` calls."""

    def __init__(self, model: SentenceTransformer):
        self.model = model

    def __call__(self, inputs: list, *, device: Any = None, **options: Any) -> Any:
        """Return what `_inference` returns; see `SentenceTransformer.encode` for the options."""
        if inputs and self._packs(inputs, device, options):
            embeddings = self._embed(inputs, **options)
            if embeddings is not None:
                return embeddings
        return type(self.model)._inference(self.model, inputs, device=device, **options)

    def _packs(self, inputs: list, device: Any, options: dict[str, Any]) -> bool:
        """Return whether these inputs can be embedded by packed batches, and are not slower."""
        model = self.model
        device = model.device if device is None else torch.device(device)
        transformer, tokenizer = model[0], model[0].tokenizer
        return (
            options["output_value"] in ("sentence_embedding", None)
            and all(isinstance(text, str) for text in inputs)
            and device.type == model.device.type
            and device.type in ("cpu", "cuda")
            and transformer.query_expansion is None
            and reads_packed_rows(model)
            and (tokenizer.padding_side == "right" or not has_position_table(transformer.auto_model))
        )

    def _is_half(self) -> bool:
        """Return whether attention is computed in half precision."""
        device = self.model.device.type
        computed = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.model.dtype
        return computed in HALF

    @torch.inference_mode()
    def _embed(
        self,
        inputs: list[str],
        prompt: str | None,
        batch_size: int,
        show_progress_bar: bool,
        normalize_embeddings: bool,
        truncate_dim: int | None,
        output_value: str | None,
        save_to_cpu: bool,
        **options: Any,
    ) -> Tensor | list[dict[str, Tensor]] | None:
        """Return what `encode` returns for N texts, in the data type of the model; None if a text has no token."""
        model = self.model.eval()
        blocks_done: list[Any] = []
        encoder, device = model[0].auto_model, model.device
        on_cpu = device.type == "cpu"
        multiple = BF16_ROWS if on_cpu and self._is_half() else 1
        index = padding_index_of(encoder)
        most = (batch_size, CPU_TOKENS) if on_cpu else (GPU_TOKENS, GPU_TOKENS)

        def forward(batch: tuple[list[list[int]], dict[str, Any]]) -> Tensor | list[dict[str, Tensor]]:
            ids, kept = batch
            packed = packed_rows(ids, index, multiple).to(device)
            features = model(packed.features() | kept, **options)
            vectors = features["sentence_embedding"][: len(ids), :truncate_dim]
            vectors = normalize(vectors, dim=1) if normalize_embeddings else vectors
            vectors = vectors[packed.rows.argsort()]
            if output_value == "sentence_embedding":
                return vectors
            return token_outputs(packed, features["token_embeddings"][0], vectors)

        given = options.get("processing_kwargs") or {}
        unpadded = given | {
            "common": given.get("common", {}) | {"return_tensors": None},
            "text": given.get("text", {}) | UNPADDED,
        }

        def tokenize(texts: list[str]) -> dict[str, Any]:
            return model.preprocess(texts, prompt=prompt, **options | {"processing_kwargs": unpadded})

        blocks = [inputs[start : start + TOKENIZED_AT_ONCE] for start in range(0, len(inputs), TOKENIZED_AT_ONCE)]
        bar = tqdm(total=len(inputs), desc="Batches", disable=not show_progress_bar)
        with bar, packed_attention_of(encoder):
            for features in made_ahead(tokenize, blocks):
                ids = features["input_ids"]
                lengths = torch.tensor([len(text) for text in ids])
                if not lengths.all():
                    return None
                kept = {name: features[name] for name in KEPT_FEATURES if name in features}
                rows = list(batches(lengths, *most))
                inputs_of = [([ids[text] for text in batch], kept) for batch in rows]
                found: list[Any] = []
                with parallel_map(len(rows) if on_cpu else 0) as run:
                    for batch, part in zip(rows, run(forward, inputs_of)):
                        found.append(part)
                        bar.update(len(batch))
                back = torch.from_numpy(np.argsort(np.concatenate(rows)))
                if output_value is None:
                    outputs = list(chain.from_iterable(found))
                    blocks_done.extend(outputs[place] for place in back.tolist())
                else:
                    block = torch.cat(found)[back.to(device)]
                    blocks_done.append(block.cpu() if save_to_cpu else block)
        return blocks_done if output_value is None else torch.cat(blocks_done)


def packed_rows(ids: list[list[int]], padding_index: int | None, multiple: int) -> Packed:
    """Pack texts whose tokens are lists; see `pack`."""
    lengths = np.array([len(text) for text in ids])
    tokens = np.fromiter(chain.from_iterable(ids), np.int64, count=lengths.sum())
    mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
    return pack_tokens(tokens, mask, padding_index, multiple)


def token_outputs(packed: Packed, hidden: Tensor, vectors: Tensor) -> list[dict[str, Tensor]]:
    """Return what `encode(output_value=None)` returns for each of N texts, without padding.

    Args:
        packed: The texts.
        hidden: Last hidden states (T, d) of the row.
        vectors: Embeddings (N, d), in the order of the batch.
    """
    outputs = []
    for places, vector in zip(packed.places.to(hidden.device), vectors):
        tokens = places[places >= 0]
        output = {"input_ids": packed.input_ids[0, tokens], "token_embeddings": hidden[tokens]}
        output |= {"sentence_embedding": vector, "attention_mask": torch.ones_like(tokens)}
        outputs.append(output)
    return outputs


def made_ahead(make: Callable[[Model], Made], given: Sequence[Model]) -> Iterator[Made]:
    """Yield what a function makes of each value, while a thread makes the next one."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(make, given[0])
        for value in given[1:]:
            made, waiting = waiting.result(), pool.submit(make, value)
            yield made
        yield waiting.result()


def batches(lengths: Tensor, most_texts: int, most_tokens: int) -> Iterator[Sequence[int]]:
    """Split texts, the longest first, into batches of limited numbers of texts and tokens.

    Args:
        lengths: Number of tokens of each text, (N,). A longer text is a batch of its own.
        most_texts: Texts per batch, at most.
        most_tokens: Tokens per batch, at most.

    Returns:
        The indices of the texts of each batch.
    """
    ordered, order = lengths.sort(descending=True, stable=True)
    sizes, start = ordered.tolist(), 0
    while start < len(sizes):
        size = min(most_texts, max(1, most_tokens // max(1, sizes[start])))
        yield order[start : start + size].tolist()
        start += size
