"""Packed rows: texts that follow each other without padding, and an encoder whose attention stays within each text.

The encoder of a packed row is a copy with another attention function (`packed_copy`): a switch in the model would
change the results of other threads. On a GPU in half precision, one kernel computes attention of all texts:
FlashAttention, or for texts of up to `LONGEST` tokens, Triton's (`informin.fast.short_attention`).
"""

import copy
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout as drop
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedConfig

from informin.distributed import to_device
from informin.errors import UsageError
from informin.views.encoder import rates_of

logger = logging.getLogger(__name__)

POSITIONS = re.compile(r"(.*\.)?(wpe|embed_positions|pos_embed\w*|position_embed\w*)")  # names of position tables
LONGEST = 64  # tokens of a text that Triton's kernel takes
WIDEST = 128  # dimensions of an attention head that it takes
PACKED_ATTENTION = "informin_packed"
HALF = (torch.float16, torch.bfloat16)
BF16_ROWS = 128  # in bf16 on a CPU, oneDNN keeps code and buffers for each shape of a matrix product
BF16_TOKENS = 16  # in bf16 on a CPU, attention of texts of other lengths takes up to three times as long
AnyModule = TypeVar("AnyModule", bound=nn.Module)


@dataclass
class Packed:
    """N texts in a row of T tokens, the longest first. Texts of filler may follow them.

    Attributes:
        input_ids: (1, T).
        position_ids: (1, T), as the encoder numbers them.
        ends: (S + 1,) int32, places where the S texts and filler texts start, and where the last one ends. With a CUDA
            graph, empty texts follow.
        texts: (1, T) int32, index of each token's text.
        runs: For neighbors of equal length, their number and their length. Empty in a CUDA graph, which would repeat
            the lengths of the batch of its capture.
        longest: No text is longer.
        rows: (N,), row in the batch of each text.
        places: (N, L), place of each token of the batch in the row; -1 for padding.
    """

    input_ids: Tensor
    position_ids: Tensor
    ends: Tensor
    texts: Tensor
    runs: list[tuple[int, int]]
    longest: int
    rows: Tensor
    places: Tensor

    def to(self, device: torch.device) -> "Packed":
        """Return a copy on a device. Copies to a GPU do not wait."""
        names = ("input_ids", "position_ids", "ends", "texts", "rows", "places")
        copies: dict[str, Any] = {name: to_device(getattr(self, name), device) for name in names}
        return replace(self, **copies)

    def features(self) -> dict[str, Any]:
        """Return the row as the features that the modules of a SentenceTransformer read."""
        number = sum(number for number, _ in self.runs)
        ends = self.ends[: number + 1] if self.runs else self.ends  # without empty texts
        return {
            "input_ids": self.input_ids,
            "position_ids": self.position_ids,
            "cu_seq_lens_q": ends,
            "cu_seq_lens_k": ends,
            "max_length_q": self.longest,
            "max_length_k": self.longest,
            "seq_idx": self.texts,
            "packed": self,
        }


def pack(
    ids: Tensor, mask: Tensor, padding_index: int | None = None, multiple: int = 1, longest: int | None = None
) -> Packed:
    """Pack padded texts of at least one token, on a CPU.

    Args:
        ids: (N, L), padded on either side.
        mask: (N, L), 1 for tokens, 0 for padding.
        padding_index: See `padding_index_of`.
        multiple: Filler extends the row to a multiple of this number of tokens.
        longest: With a CUDA graph, the most tokens of a text in any batch; the number of ends is then that of the most
            filler texts. None for that of this batch.
    """
    there = mask.numpy()
    return pack_tokens(ids.numpy()[there > 0], there, padding_index, multiple, longest)


def pack_tokens(
    tokens: np.ndarray,
    mask: np.ndarray,
    padding_index: int | None,
    multiple: int,
    longest: int | None = None,
) -> Packed:
    """Pack the tokens (T,) of texts that follow each other; see `pack`.

    NumPy computes it: PyTorch would split these small operations across threads, which takes ten times as long.
    """
    lengths = mask.sum(1)
    order = np.argsort(-lengths, kind="stable")
    fixed = longest is not None
    longest = longest or int(lengths[order[0]])
    extra = -len(tokens) % multiple
    filler = [longest] * (extra // longest) + [extra % longest] * (extra % longest > 0)
    sizes = lengths[order].tolist() + filler
    missing = -(-multiple // longest) - len(filler) if fixed else 0  # empty texts at the end
    ends = np.concatenate([[0], np.cumsum(sizes + [0] * missing)])
    starts = np.empty_like(order)  # of each text of the batch in the row
    starts[order] = ends[: len(order)]
    places = np.where(mask > 0, starts[:, None] + mask.cumsum(1) - 1, -1)
    row = np.full(len(tokens) + extra, tokens[0])  # the filler consists of the first token
    row[places[places >= 0]] = tokens
    positions = position_ids(row, np.array(sizes), ends[: len(sizes) + 1], padding_index)
    texts = np.arange(len(sizes), dtype=np.int32).repeat(sizes)
    return Packed(
        input_ids=torch.from_numpy(row)[None],
        position_ids=torch.from_numpy(positions)[None],
        ends=torch.from_numpy(ends.astype(np.int32)),
        texts=torch.from_numpy(texts)[None],
        runs=[(len(list(same)), length) for length, same in groupby(sizes)],
        longest=longest,
        rows=torch.from_numpy(order),
        places=torch.from_numpy(places),
    )


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


def packed_copy(module: AnyModule, training: bool | None = None, view: int | None = None) -> AnyModule:
    """Return a copy of an encoder, or of a model around it, that computes packed rows only; see `copy_for_call`."""
    return copy_for_call(module, PACKED_ATTENTION, training, view)


def copy_for_call(
    module: AnyModule, attention: str | None = None, training: bool | None = None, view: int | None = None
) -> AnyModule:
    """Return a copy of a module and its submodules, with the same weights and hooks and with settings of its own.

    Args:
        module: The module.
        attention: Name of the attention function of the copy; None for that of the module.
        training: Whether the copy is in training mode; None for the mode of each module.
        view: Index of the view whose dropout rates the copy has; None for those of the module.
    """
    return _copied(module, attention, training, view, {})


def _copied(
    module: nn.Module, attention: str | None, training: bool | None, view: int | None, done: dict[int, Any]
) -> Any:
    if id(module) in done:
        return done[id(module)]
    own = done[id(module)] = object.__new__(type(module))
    values = vars(own)
    values |= vars(module)  # not by copy.copy, which takes five times as long
    values["_compiled_call_impl"] = None  # `module.compile()` compiled it with the settings of the module
    values["_buffers"] = values["_buffers"].copy()
    children = values["_modules"].items()
    values["_modules"] = {name: child and _copied(child, attention, training, view, done) for name, child in children}
    if training is not None:
        values["training"] = training
    for name in ("rates", "view_rates"):  # of `ViewDropout`, and of attention
        if view is not None and values.get(name) is not None:
            values[name] = (values[name][view],)
    config = values.get("config")
    if attention is not None and isinstance(config, PreTrainedConfig):
        if id(config) not in done:
            done[id(config)] = copy.copy(config)
            vars(done[id(config)])["_attn_implementation_internal"] = attention  # the property sets that of others, too
        values["config"] = done[id(config)]
    return own


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packed: Packed,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Return attention within each text, (1, T, H, d/H); transformers calls it with queries (1, H, T, d/H) of a row."""
    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    # squeeze, because the backward pass of an index copies its gradient into zeros.
    query, key, value = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))  # (T, H, d/H)
    if (rates := rates_of(module)) is not None:  # of the one view of the row
        dropout = rates[0]
    dropout = dropout if module.training else 0.0
    how = (query, key, value, packed, dropout, scaling, sliding_window, causal)
    on_cpu = value.device.type == "cpu"
    in_bf16 = on_cpu and value.dtype == torch.bfloat16 and not torch.is_autocast_enabled("cpu")
    if module.training and getattr(module, "keeps_map", False):
        outputs, module.kept_map = _attend_with_maps(*how)
    elif computes_at_once(query.device, value.dtype):
        outputs = _attend_at_once(*how)
    elif in_bf16 and not module.training and not value.requires_grad:
        outputs = _attend_by_spans(query, key, value, packed, scaling, sliding_window, causal)
    else:
        outputs = _attend_by_runs(*how)
    return outputs[None], None


def computes_at_once(device: torch.device, dtype: torch.dtype | None) -> bool:
    """Return whether one kernel computes attention of all texts: in half precision, on a GPU with FlashAttention.

    NVIDIA's GPUs have it since Ampere.
    """
    return device.type == "cuda" and dtype in HALF and torch.cuda.get_device_capability(device) >= (8, 0)


def _attend_by_runs(query, key, value, packed: Packed, dropout, scaling, window, causal) -> Tensor:
    """Return attention (T, H, d/H); one call for neighbors of equal length."""
    outputs, runs = [], _runs(query, key, value, packed)
    with torch.autocast("cpu", enabled=False):
        for length, q, k, v in runs:
            mask = _window_mask(length, window, causal, query.device)
            how = {"attn_mask": mask, "dropout_p": dropout, "is_causal": causal and mask is None, "scale": scaling}
            outputs.append(scaled_dot_product_attention(q, k, v, **how).transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


def _attend_by_spans(query, key, value, packed: Packed, scaling, window, causal) -> Tensor:
    """Return attention (T, H, d/H) without dropout, by overlapping spans of the row; for bf16 on a CPU.

    The span of a text has a multiple of `BF16_TOKENS` tokens. Those of the next text are masked as keys, and their
    outputs are left out. At the end of the row, where a span would be too long, it has the tokens of the text.
    """
    outputs, start = torch.empty_like(query), 0
    hidden = query.new_zeros(packed.longest + BF16_TOKENS)
    hidden[packed.longest :] = -torch.inf
    for number, length in packed.runs:
        size, end = length + -length % BF16_TOKENS, start + number * length
        if end - length + size > len(query):
            size = length
        mask = None if window is None or length <= window else _window_mask(size, window, causal, query.device)
        if mask is not None:
            mask[:, length:] = False
        elif size > length and not causal:
            mask = hidden[packed.longest - length :][:size].expand(size, size)
        spans = (_spans(x, start, number, length, size) for x in (query, key, value))
        how = {"attn_mask": mask, "is_causal": causal and mask is None, "scale": scaling}
        found = scaled_dot_product_attention(*spans, **how).transpose(1, 2)
        outputs[start:end].unflatten(0, (number, length)).copy_(found[:, :length])
        start = end
    return outputs


def _spans(x: Tensor, start: int, number: int, length: int, size: int) -> Tensor:
    """Return the spans (number, H, size, d/H) of a row (T, H, d/H) that start at texts of equal length."""
    token, head, place = x.stride()
    strides = (length * token, head, token, place)
    return x.as_strided((number, x.shape[1], size, x.shape[2]), strides, x.storage_offset() + start * token)


def _attend_with_maps(query, key, value, packed: Packed, dropout, scaling, window, causal) -> tuple[Tensor, Tensor]:
    """Return attention (T, H, d/H), and the maps (N, H, L, L) of the texts in the row after dropout, 0 at padding."""
    outputs, maps, runs = [], [], _runs(query, key, value, packed)
    with torch.autocast("cpu", enabled=False):
        for length, q, k, v in runs:
            scores = q @ k.transpose(-2, -1) * (scaling or q.shape[-1] ** -0.5)  # (number, H, length, length)
            mask = _window_mask(length, window, causal, query.device)
            if mask is None and causal:
                mask = torch.ones_like(scores, dtype=torch.bool).tril()
            if mask is not None:
                scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
            map_ = drop(scores.softmax(-1), dropout)
            outputs.append((map_ @ v).transpose(1, 2).flatten(0, 1))
            maps.append(pad(map_, (0, packed.longest - length) * 2))
    return torch.cat(outputs), torch.cat(maps)[: len(packed.rows)]  # without those of filler


def _runs(query, key, value, packed: Packed) -> list[tuple[int, Tensor, Tensor, Tensor]]:
    """Return neighbors of equal length: their length, and their queries, keys and values (number, H, length, d/H).

    With autocast on a CPU, attention is computed in float32, because of oneDNN.
    """
    if not packed.runs:
        raise UsageError(
            "is true, and this encoder computes attention in float32, so a graph would repeat the lengths of one batch",
            option="cuda_graphs",
            fix="Set `cuda_graphs` to false.",
        )
    sizes = [number * length for number, length in packed.runs]
    if query.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        query, key, value = query.float(), key.float(), value.float()
    runs = []
    # split instead of slices, whose gradients would each be as long as the row.
    for (number, length), *run in zip(packed.runs, query.split(sizes), key.split(sizes), value.split(sizes)):
        q, k, v = (x.unflatten(0, (number, length)).transpose(1, 2) for x in run)
        runs.append((length, q, k, v))
    return runs


def _window_mask(length: int, window: int | None, causal: bool, device: torch.device) -> Tensor | None:
    """Return which keys a query sees, (length, length) bool; None if a text is shorter than the sliding window."""
    if window is None or length <= window:
        return None
    place = torch.arange(length, device=device)
    distance = place[:, None] - place
    return (distance.abs() < window) & (distance >= 0 if causal else True)


def _attend_at_once(query, key, value, packed: Packed, dropout, scaling, window, causal) -> Tensor:
    """Return attention (T, H, d/H) by one kernel, in fp16 or bf16 on a GPU."""
    size, longest = query.shape[-1], packed.longest
    scaling = size**-0.5 if scaling is None else scaling
    query, key, value = (x.to(value.dtype).contiguous() for x in (query, key, value))
    attend = attention_of_short_texts(longest, query)
    if attend:
        return attend(query, key, value, packed.ends, longest, dropout, scaling, window, causal)
    if size % 8:
        query, key, value = (pad(x, (0, -size % 8)).contiguous() for x in (query, key, value))
    how: dict[str, Any] = {"scale": scaling}
    if window is not None and longest > window:
        how |= {"window_size_left": window - 1, "window_size_right": 0 if causal else window - 1}
    ends = packed.ends
    kernel = torch.ops.aten._flash_attention_forward
    return kernel(query, key, value, ends, ends, longest, longest, dropout, causal, False, **how)[0][..., :size]


def attention_of_short_texts(longest: int, query: Tensor) -> Callable[..., Tensor] | None:
    """Return `ShortAttention.apply` if it can compute attention for some texts, else None.

    Args:
        longest: No text is longer.
        query: (T, H, d), of any texts.
    """
    if longest > LONGEST or query.shape[-1] > WIDEST:
        return None
    return _kernel_for(query.device)


@cache
def _kernel_for(device: torch.device) -> Callable[..., Tensor] | None:
    """Return `ShortAttention.apply` if it runs on a device. The first call compiles it for one size."""
    try:
        from informin.fast.short_attention import ShortAttention

        sample = torch.ones(1, 1, 16, dtype=torch.float16, device=device)
        ShortAttention.apply(sample, sample, sample, torch.arange(2, device=device), 1, 0.0, 1.0, None, False)
    except Exception as error:  # whatever a missing compiler raises
        if not isinstance(error, ImportError):
            logger.info(f"FlashAttention is used for short texts, because Triton cannot compile ({error}).")
        return None
    return ShortAttention.apply


# Without a mask function, transformers does not build a mask.
AttentionInterface.register(PACKED_ATTENTION, packed_attention)
