"""Embed without padding: the embeddings of a SentenceTransformer in less time.

    model = informin.speed_up(SentenceTransformer("all-MiniLM-L6-v2"))

`model.encode` then runs on packed batches (`informin.fast.packing`). A CPU computes one batch per core. In half
precision, a batch may contain more than `batch_size` texts, with up to `CPU_TOKENS` tokens. A GPU computes batches of
`GPU_TOKENS` tokens, in fp16 and bf16 only, if it has FlashAttention. All modules run, with their hooks.
`encode(output_value=None)`, which also returns the last hidden states, is packed, too.

Encoders that cannot read packed texts, such as MPNet, DeBERTa and T5, run on a CPU in batches of nearly equal length,
also one per core. Everything else is computed as before.

A call computes with a copy of the modules that shares their weights and with a copy of the tokenizer that shares its
vocabulary, so that threads can share a model, also with calls that are computed as before, and with one that trains it.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Transformer
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import normalize
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from informin.errors import counted
from informin.fast.packing import (
    BF16_ROWS,
    HALF,
    Packed,
    computes_at_once,
    copy_for_call,
    has_position_table,
    pack_tokens,
    packed_copy,
    padding_index_of,
)
from informin.fast.plan import reads_packed_rows
from informin.fast.precision import DTYPES, Precision, chosen_precision, pool_in_float32, precision_of, set_precision
from informin.fast.threads import BATCHES_PER_CORE, parallel_map

logger = logging.getLogger(__name__)

# Tokens per packed forward pass. On a CPU, with up to 4,096 floats per token, the largest activation stays below
# 32 MiB. The C library (glibc) returns larger blocks to the system, so each layer would wait for new pages.
CPU_TOKENS, GPU_TOKENS = 2_000, 32_768
SORTED_TOKENS = 1_000  # per padded forward pass on a CPU
LEAST_FILLED = 0.9  # fraction of the longest text of a padded batch
FEWEST_TOKENS = 300  # of a padded batch, which then has shorter texts, too
TOKENIZED_AT_ONCE = 8_192  # tokenized at once, while the texts before them are embedded
UNPADDED = {"padding": False, "return_attention_mask": False}  # of the tokenizer
KEPT_FEATURES = ("modality", "prompt_length")  # features that the modules read beside tokens
Model = TypeVar("Model")
Made = TypeVar("Made")


def speed_up(
    model: SentenceTransformer, precision: Precision | None = None, *, bf16: bool | None = None
) -> SentenceTransformer:
    """Make `encode` of a model faster, by default with the same embeddings up to rounding (about 1e-7).

    It changes the given model, returns it, and logs how `encode` computes. Texts are packed if the model consists of a
    Transformer that supports attention functions (most encoders and decoders of transformers), a Pooling, and
    optionally more modules that read only the sentence embedding. `encode(output_value=None)` then returns token
    embeddings without padding. Other models that start with a Transformer get batches of nearly equal length on a CPU.
    Everything else is computed as before. Threads may share the model.

    Args:
        model: The model.
        precision: Precision of the encoder's weights: fp32, bf16, fp16, or auto, the fastest of them on the model's
            device. Everything after the encoder is in float32. None keeps the weights.
        bf16: An older option. True is `precision` bf16.

    Raises:
        UsageError: `precision` is none of these.

    Example:
        >>> model = informin.speed_up(SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2"))
        >>> embeddings = model.encode(sentences)
    """
    chosen = chosen_precision(precision, bf16, model.device)
    if chosen is not None:
        set_precision(model, chosen)
    set_inference(model)
    logger.info(PackedInference(model).description())
    return model


def set_inference(model: SentenceTransformer) -> SentenceTransformer:
    """Replace the inference of a model as `speed_up` does, without changing its weights or logging."""
    model._inference = PackedInference(model)
    return model


class PackedInference:
    """Replaces `SentenceTransformer._inference`, which `encode` calls.

    Attributes:
        model: The model. In half precision, each call pools and normalizes in float32.
    """

    def __init__(self, model: SentenceTransformer):
        self.model = model

    def __call__(self, inputs: list, *, device: Any = None, **options: Any) -> Any:
        """Return what `_inference` returns; see `SentenceTransformer.encode` for the options."""
        packs = bool(inputs) and self._packs(inputs, device, options)
        if packs or (len(inputs) > 1 and self._sorts(inputs, device, options)):
            embeddings = self._for_one_call(packs)._embed(inputs, **options)
            if embeddings is not None:
                return embeddings
        model, in_half = self.model, precision_of(self.model) != "fp32"
        if in_half or (self._trains() and not self._is_patched()):
            model = copy_for_call(model)  # `_inference` turns dropout off
        if in_half:
            pool_in_float32(model)
        return type(model)._inference(model, inputs, device=device, **options)

    def _for_one_call(self, packs: bool) -> "PackedInference":
        """Return the same with a copy of the model that other threads do not use, packed or in sorted batches."""
        model = (packed_copy if packs else copy_for_call)(self.model, training=False)
        model[0].processor = copy_of_tokenizer(model[0].processor)
        if precision_of(model) != "fp32":
            pool_in_float32(model)
        return PackedInference(model) if packs else SortedInference(model)

    def _packs(self, inputs: list, device: Any, options: dict[str, Any]) -> bool:
        """Return whether these inputs can be embedded by packed batches, and are not slower."""
        device = self.model.device if device is None else torch.device(device)
        return (
            options["output_value"] in ("sentence_embedding", None)
            and self._reads_texts(inputs, device)
            and (device.type == "cpu" or computes_at_once(device, self._dtype()))
            and reads_packed_rows(self.model)
        )

    def _sorts(self, inputs: list, device: Any, options: dict[str, Any]) -> bool:
        """Return whether these inputs can be embedded by batches of equal length, and are not slower."""
        device = self.model.device if device is None else torch.device(device)
        return (
            options["output_value"] == "sentence_embedding"
            and device.type == "cpu"
            and self._reads_texts(inputs, device)
            and isinstance(self.model[0].auto_model, PreTrainedModel)
            and self.model[0].tokenizer.pad_token_id is not None
            and not self._is_patched()
        )

    def _is_patched(self) -> bool:
        """Return whether a copy would share the forward pass that accelerate sets, or lose a compiled one."""
        return any("forward" in vars(module) or module._compiled_call_impl for module in self.model.modules())

    def _trains(self) -> bool:
        """Return whether a part of the model is in training mode."""
        return any(module.training for module in self.model.modules())

    def _reads_texts(self, inputs: list, device: torch.device) -> bool:
        """Return whether a Transformer reads these inputs as tokens, the same ones in every batch."""
        transformer = self.model[0]
        return (
            type(transformer) is Transformer
            and all(isinstance(text, str) for text in inputs)
            and device.type == self.model.device.type
            and transformer.query_expansion is None
            and transformer.tokenizer is not None
            and (transformer.tokenizer.padding_side == "right" or not has_position_table(transformer.auto_model))
        )

    def description(self) -> str:
        """Return in one line how `encode` computes embeddings of texts."""
        given: tuple = (["a", "b"], None, {"output_value": "sentence_embedding"})
        packs, sorts = self._packs(*given), self._sorts(*given)
        device, first = self.model.device, self.model[0]
        name = type(getattr(first, "auto_model", first)).__name__
        if not packs and not sorts:
            return f"encode of {name} on {device} stays as it is: neither packed nor sorted batches would be faster."
        way = "packed batches" if packs else "batches of nearly equal length"
        threads = f", {counted(torch.get_num_threads(), 'thread')}" if device.type == "cpu" else ""
        return f"encode of {name} on {device}: {way}, {precision_of(self.model)}{threads}."

    def _dtype(self) -> torch.dtype:
        """Return the data type in which attention is computed."""
        device = self.model.device.type
        if torch.is_autocast_enabled(device):
            return torch.get_autocast_dtype(device)
        return DTYPES[precision_of(self.model)]

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
        model = self.model
        wanted = EncodeOptions(
            normalized=normalize_embeddings and output_value is not None,
            width=truncate_dim,
            with_tokens=output_value is None,
            padding_index=padding_index_of(model[0].auto_model),
            options=options,
        )
        tokenize = partial(self._tokenized, prompt=prompt, with_types=wanted.with_tokens, options=options)
        blocks = [inputs[start : start + TOKENIZED_AT_ONCE] for start in range(0, len(inputs), TOKENIZED_AT_ONCE)]
        bar = tqdm(total=len(inputs), desc="Batches", disable=not show_progress_bar)
        done: list[Any] = []
        with bar:
            for features in prefetched(tokenize, blocks):
                if not self._fits(features):
                    return None
                block = self._embed_block(features, wanted, batch_size, bar)
                done.append(block.cpu() if isinstance(block, Tensor) and save_to_cpu else block)
        return list(chain.from_iterable(done)) if wanted.with_tokens else torch.cat(done)

    def _fits(self, features: dict[str, Any]) -> bool:
        """Return whether every text has a token."""
        return all(features["input_ids"])

    def _tokenized(
        self, texts: list[str], prompt: str | None, with_types: bool, options: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the features of texts. `input_ids` are lists without padding, which take a third of the time."""
        given = options.get("processing_kwargs") or {}
        unpadded = given | {
            "common": given.get("common", {}) | {"return_tensors": None},
            "text": given.get("text", {}) | UNPADDED | ({} if with_types else {"return_token_type_ids": False}),
        }
        # Copies: Python keeps the UTF-8 bytes that the tokenizer reads with a string that is not ASCII.
        texts = [text[:1] + text[1:] for text in texts]
        return self.model.preprocess(texts, prompt=prompt, **options | {"processing_kwargs": unpadded})

    def _embed_block(
        self, features: dict[str, Any], wanted: "EncodeOptions", batch_size: int, bar: tqdm
    ) -> Tensor | list[dict[str, Tensor]]:
        """Return the outputs of tokenized texts, in their order, from batches of similar length."""
        ids = features["input_ids"]
        kept = {name: features[name] for name in KEPT_FEATURES if name in features}
        on_cpu = self.model.device.type == "cpu"
        rows = list(self._batches(torch.tensor([len(text) for text in ids]), batch_size))
        found: list[Any] = []
        with parallel_map(len(rows) if on_cpu else 0) as run:
            outputs = run(
                partial(self._forward, kept=kept, wanted=wanted), [[ids[text] for text in row] for row in rows]
            )
            for row, output in zip(rows, outputs):
                found.append(output)
                bar.update(len(row))
        back = np.argsort(np.concatenate(rows))
        if wanted.with_tokens:
            of_texts = list(chain.from_iterable(found))
            outputs = [of_texts[place] | kept for place in back]
            for output, types in zip(outputs, features.get("token_type_ids", ())):
                output["token_type_ids"] = torch.tensor(types, device=self.model.device)
            return outputs
        return torch.cat(found)[torch.from_numpy(back).to(self.model.device)]

    def _batches(self, lengths: Tensor, batch_size: int) -> Iterator[Sequence[int]]:
        """Return the indices of the texts of each batch."""
        if self.model.device.type != "cpu":
            return batches(lengths, GPU_TOKENS, GPU_TOKENS)
        if self._dtype() in HALF:  # large products are faster, and `parallel_map` needs some batches per core
            batch_size = max(batch_size, len(lengths) // (BATCHES_PER_CORE * torch.get_num_threads()))
        return batches(lengths, batch_size, CPU_TOKENS)

    def _forward(
        self, ids: list[list[int]], kept: dict[str, Any], wanted: "EncodeOptions"
    ) -> Tensor | list[dict[str, Tensor]]:
        """Return the outputs of a batch of texts, from one packed forward pass."""
        model = self.model
        multiple = BF16_ROWS if model.device.type == "cpu" and self._dtype() in HALF else 1
        packed = packed_rows(ids, wanted.padding_index, multiple).to(model.device)
        features = model(packed.features() | kept, **wanted.options)
        vectors = features["sentence_embedding"][: len(ids), : wanted.width]
        vectors = normalize(vectors, dim=1) if wanted.normalized else vectors
        vectors = vectors[packed.rows.argsort()]
        return token_outputs(packed, features["token_embeddings"][0], vectors) if wanted.with_tokens else vectors


class SortedInference(PackedInference):
    """The same in padded batches of nearly equal length, for encoders that cannot read packed texts."""

    def _tokenized(
        self, texts: list[str], prompt: str | None, with_types: bool, options: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the features of texts without padding, with the token types that the encoder reads."""
        return super()._tokenized(texts, prompt, True, options)

    def _fits(self, features: dict[str, Any]) -> bool:
        """Return whether the batches can be made from token ids alone."""
        types = features.get("token_type_ids", ())
        return (
            super()._fits(features)
            and features.keys() <= {"input_ids", "token_type_ids", *KEPT_FEATURES}
            and not any(any(text) for text in types)
        )

    def _batches(self, lengths: Tensor, batch_size: int) -> Iterator[Sequence[int]]:
        return nearly_equal(lengths)

    def _forward(self, ids: list[list[int]], kept: dict[str, Any], wanted: "EncodeOptions") -> Tensor:
        """Return the embeddings of a batch of texts, from one padded forward pass."""
        tokenizer = self.model[0].tokenizer
        lengths = torch.tensor([len(text) for text in ids])
        places = torch.arange(int(lengths.max()))
        mask = places < lengths[:, None]
        if tokenizer.padding_side == "left":
            mask = mask.flip(1)
        tokens = torch.full(mask.shape, tokenizer.pad_token_id)
        tokens[mask] = torch.tensor(list(chain.from_iterable(ids)))
        features = {"input_ids": tokens, "attention_mask": mask.long()}
        if "token_type_ids" in tokenizer.model_input_names:
            features["token_type_ids"] = torch.zeros_like(tokens)
        vectors = self.model(features | kept, **wanted.options)["sentence_embedding"][:, : wanted.width]
        return normalize(vectors, dim=1) if wanted.normalized else vectors


@dataclass(frozen=True)
class EncodeOptions:
    """What a call of `encode` asks for.

    Attributes:
        normalized: Whether embeddings have unit length.
        width: Number of dimensions to keep; None for all.
        with_tokens: Whether the last hidden states are returned, too.
        padding_index: See `padding_index_of`.
        options: Further options, for the modules of the model.
    """

    normalized: bool
    width: int | None
    with_tokens: bool
    padding_index: int | None
    options: dict[str, Any]


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


def prefetched(make: Callable[[Model], Made], given: Sequence[Model]) -> Iterator[Made]:
    """Yield what a function makes of each value, while a thread makes the next one."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(make, given[0])
        for value in given[1:]:
            made, waiting = waiting.result(), pool.submit(make, value)
            yield made
        yield waiting.result()


def batches(
    lengths: Tensor, most_texts: int, most_tokens: int, least_filled: float = 0.0, fewest_tokens: int = 0
) -> Iterator[Sequence[int]]:
    """Split texts, the longest first, into batches of limited numbers of texts and tokens.

    Args:
        lengths: Number of tokens of each text, (N,). A longer text is a batch of its own.
        most_texts: Texts per batch, at most.
        most_tokens: Tokens per batch, at most.
        least_filled: No text of a batch is shorter than this fraction of the longest one,
        fewest_tokens: unless the batch would have fewer tokens than these: small products are slow.

    Returns:
        The indices of the texts of each batch.
    """
    ordered, order = lengths.sort(descending=True, stable=True)
    sizes, start = ordered.tolist(), 0
    while start < len(sizes):
        size = min(most_texts, max(1, most_tokens // max(1, sizes[start])))
        similar = int((ordered[start : start + size] >= least_filled * sizes[start]).sum())
        size = min(size, max(similar, fewest_tokens // max(1, sizes[start])))
        yield order[start : start + size].tolist()
        start += size


def nearly_equal(lengths: Tensor) -> Iterator[Sequence[int]]:
    """Return the batches of texts of nearly equal length; see `batches`."""
    return batches(lengths, len(lengths), SORTED_TOKENS, LEAST_FILLED, FEWEST_TOKENS)


def copy_of_tokenizer(tokenizer: Any) -> Any:
    """Return a copy of a tokenizer or processor with the same vocabulary, whose padding and truncation are its own."""
    if isinstance(tokenizer, Tokenizer):
        return _copy_of_backend(tokenizer)
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        inner = vars(tokenizer).get("tokenizer")
        return _with(tokenizer, tokenizer=copy_of_tokenizer(inner)) if inner is not None else tokenizer
    own = {"_tokenizer": _copy_of_backend(tokenizer._tokenizer)} if tokenizer.is_fast else {}
    return _with(tokenizer, **own)


def _with(given: Any, **values: Any) -> Any:
    own = object.__new__(type(given))
    vars(own).update(vars(given) | values)
    return own


def _copy_of_backend(given: Tokenizer) -> Tokenizer:
    """Return a copy without padding and truncation, in less than a millisecond: the vocabulary is shared."""
    own = Tokenizer(given.model)
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if (part := getattr(given, name)) is not None:
            setattr(own, name, part)
    added = given.get_added_tokens_decoder()
    own.add_tokens([added[number] for number in sorted(added)])
    own.encode_special_tokens = given.encode_special_tokens
    if own.get_added_tokens_decoder() == added:
        return own
    own = Tokenizer.from_str(given.to_str())  # such as with gaps between the ids
    own.no_padding()
    own.no_truncation()
    return own
