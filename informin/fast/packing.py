"""Whether an encoder can be packed: its hidden states for a few texts in one row are those of the padded batch."""

import inspect
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from informin.distributed import to_device
from informin.errors import UsageError
from informin.fast.attention import takes_attention_functions
from informin.fast.call_copy import AnyModule, copy_for_call, has_other_forward
from informin.fast.kernel import attention_of_short_texts
from informin.fast.positions import padding_index_of, position_ids

PACKED_ATTENTION = "informin_packed"
HALF = (torch.float16, torch.bfloat16)
BF16_ROWS = 128  # in bf16 on a CPU, oneDNN keeps code and buffers for each shape of a matrix product


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
    padding_index: int | None = None,
    multiple: int = 1,
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


def packed_copy(module: AnyModule, training: bool | None = None) -> AnyModule:
    """Return a copy of an encoder, or of a model around it, that computes packed rows only; see `copy_for_call`."""
    return copy_for_call(module, PACKED_ATTENTION, training)


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
    dropout = dropout if module.training else 0.0
    attend = _attend_at_once if computes_at_once(query.device, value.dtype) else _attend_by_runs
    return attend(query, key, value, packed, dropout, scaling, sliding_window, causal)[None], None


def computes_at_once(device: torch.device, dtype: torch.dtype | None) -> bool:
    """Return whether one kernel computes attention of all texts: in half precision, on a GPU with FlashAttention.

    NVIDIA's GPUs have it since Ampere.
    """
    return device.type == "cuda" and dtype in HALF and torch.cuda.get_device_capability(device) >= (8, 0)


def _attend_by_runs(query, key, value, packed: Packed, dropout, scaling, window, causal) -> Tensor:
    """Return attention (T, H, d/H); one call for neighbors of equal length.

    With autocast on a CPU, attention is computed in float32, because of oneDNN.
    """
    if not packed.runs:
        raise UsageError(
            "is true, and this encoder computes attention in float32, so a graph would repeat the lengths of one batch",
            option="cuda_graphs",
            fix="Set `cuda_graphs` to false.",
        )
    sizes = [number * length for number, length in packed.runs]
    on_cpu = query.device.type == "cpu"
    if on_cpu and torch.is_autocast_enabled("cpu"):
        query, key, value = query.float(), key.float(), value.float()
    outputs = []
    with torch.autocast("cpu", enabled=False):
        # split instead of slices, whose gradients would each be as long as the row.
        for (number, length), *run in zip(packed.runs, query.split(sizes), key.split(sizes), value.split(sizes)):
            q, k, v = (x.unflatten(0, (number, length)).transpose(1, 2) for x in run)  # (number, H, length, d/H)
            mask = _window_mask(length, window, causal, query.device)
            how = {"attn_mask": mask, "dropout_p": dropout, "is_causal": causal and mask is None, "scale": scaling}
            outputs.append(scaled_dot_product_attention(q, k, v, **how).transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


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


# Without a mask function, transformers does not build a mask.
AttentionInterface.register(PACKED_ATTENTION, packed_attention)


SAMPLE_LENGTHS = (12, 5, 5)  # lengths of the texts that are compared
TOLERANCE, HALF_TOLERANCE = 1e-4, 0.05  # of the largest hidden state
_packs: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def can_pack(encoder: nn.Module) -> bool:
    """Return whether an encoder takes attention functions, and gives the same hidden states for packed texts.

    An encoder with a state beside attention, or with code of its own, may take such functions and mix the texts.
    """
    if not isinstance(encoder, PreTrainedModel) or not takes_attention_functions(encoder):
        return False
    parameters = inspect.signature(encoder.forward).parameters.values()
    kinds = {one.kind for one in parameters}
    if inspect.Parameter.VAR_KEYWORD not in kinds or "position_ids" not in {one.name for one in parameters}:
        return False
    if has_other_forward(encoder):
        return False
    if encoder not in _packs:
        _packs[encoder] = _gives_equal_states(encoder)
    return _packs[encoder]


@torch.no_grad()
def _gives_equal_states(encoder: PreTrainedModel) -> bool:
    """Compare the hidden states of a few packed tokens with those of the padded batch."""
    lengths = torch.tensor(SAMPLE_LENGTHS)
    table: Any = encoder.get_input_embeddings()
    mask = (torch.arange(max(SAMPLE_LENGTHS)) < lengths[:, None]).long()
    words = torch.arange(mask.numel()).view_as(mask) % min(table.num_embeddings, 100)
    index = padding_index_of(encoder)
    ids = torch.where(words == index, words + 1, words) if index is not None else words
    device = table.weight.device
    packed = pack(ids, mask, index).to(device)
    row = packed.features()
    embeddings = table(row.pop("input_ids"))
    try:
        with torch.autocast(device.type, enabled=False):  # its rounding is larger than the tolerance
            usual, own = copy_for_call(encoder, training=False), packed_copy(encoder, training=False)
            padded = usual(input_ids=ids.to(device), attention_mask=mask.to(device)).last_hidden_state
            states = own(inputs_embeds=embeddings, **row).last_hidden_state
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
        return False  # whatever a stranger's code does with a row
    expected = padded[packed.rows][mask[packed.rows.cpu()].bool()]
    tolerance = HALF_TOLERANCE if states.dtype in HALF else TOLERANCE
    return bool((states[0] - expected).abs().max() <= tolerance * expected.abs().max())
