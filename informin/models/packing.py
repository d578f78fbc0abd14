"""Run an encoder without padding: the tokens of a batch are packed into one row.

In a batch of sentences of up to 32 tokens, more than a quarter of the positions are padding. Linear layers run on the
packed tokens (T, d), with the longest sentence first. Attention handles neighboring sentences of equal length together:
they are views of the row and need no mask. On a GPU, where many small matrix products are slow, one kernel handles all
sentences at once. With [CLS] pooling, the last layer computes queries, output and feed-forward of the first token only;
keys and values are those of all tokens.

Both optimizations are exact.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nested import nested_tensor_from_jagged
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import BertModel, CamembertModel, ElectraModel, PreTrainedModel, RobertaModel, XLMRobertaModel
from transformers.models.bert.modeling_bert import BertLayer, BertSelfAttention
from transformers.models.roberta.modeling_roberta import RobertaEmbeddings

BF16_ROWS = 128  # see `run_layers`
PACKED = (BertModel, RobertaModel, XLMRobertaModel, CamembertModel, ElectraModel)
# Values of `model_type` whose position ids start after the padding index.
OFFSET_POSITIONS = (
    *("roberta", "xlm-roberta", "camembert", "mpnet", "roberta-prelayernorm", "xlm-roberta-xl", "xmod"),
    *("data2vec-text", "ibert", "longformer"),
)
LayersRun = Callable[[list[BertLayer], Tensor, "Packed", bool], Tensor]
_packed: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # by mask; see `Packed.once`


@dataclass
class Packed:
    """Positions of N sentences in a row of their T tokens.

    Attributes:
        order: (N,), indices of the sentences, the longest first.
        runs: For each length, the number of sentences and the length.
        starts: (N,), indices in the row where the sentences start, in that order.
        at: (T,), indices of the tokens in the flattened batch (N, L).
        ends: (N + 1,), indices in the row where the sentences start and where the last one ends.
        numbers: (N + 1,), from 0 to N: the `ends` of a row of first tokens.
    """

    order: Tensor
    runs: list[tuple[int, int]]
    starts: Tensor
    at: Tensor

    def __post_init__(self) -> None:
        self.ends = pad(self.starts, (0, 1), value=len(self.at))
        self.numbers = torch.arange(len(self.ends), device=self.at.device)

    @classmethod
    def once(cls, mask: Tensor) -> "Packed":
        """Return `of(mask)`, computed once for each mask.

        Gradient caching computes a chunk twice, and nested tensors have equal shapes only if they share one tensor of
        offsets.
        """
        if not torch.is_grad_enabled() or mask.is_inference():
            return cls.of(mask)
        version, packed = _packed.get(mask, (None, None))
        if packed is None or version != mask._version:
            packed = cls.of(mask)
            _packed[mask] = mask._version, packed
        return packed

    @classmethod
    def of(cls, mask: Tensor) -> "Packed":
        """Pack a batch with the mask (N, L), 1 for tokens and 0 for padding."""
        lengths, order = mask.sum(1).sort(descending=True, stable=True)
        values, counts = lengths.unique_consecutive(return_counts=True)
        indices = torch.arange(mask.numel(), device=mask.device).view_as(mask)
        return cls(
            order=order,
            runs=list(zip(counts.tolist(), values.tolist())),
            starts=lengths.cumsum(0) - lengths,
            at=indices[order][mask[order].bool()],
        )

    def split(self, number: int) -> list["Packed"]:
        """Split the row between sentences into at most `number` rows with about the same number of tokens."""
        total = len(self.at)
        ideal = torch.arange(1, number, device=self.at.device) * total / number
        cuts = [0, *torch.searchsorted(self.starts, ideal).tolist(), len(self.order)]
        ends = [*self.starts.tolist(), total]
        return [self._slice(first, last, ends) for first, last in pairwise(cuts) if first < last]

    def _slice(self, first: int, last: int, ends: list[int]) -> "Packed":
        """Return sentences `first` to `last` - 1 as a row of their own; sentence i starts at ends[i]."""
        lengths = [end - start for start, end in pairwise(ends[first : last + 1])]
        return Packed(
            order=self.order[first:last],
            runs=[(len(list(same)), length) for length, same in groupby(lengths)],
            starts=self.starts[first:last] - ends[first],
            at=self.at[ends[first] : ends[last]],
        )

    def in_order(self, x: Tensor) -> Tensor:
        """Reorder values (N, ...) from the order of the row to the order of the batch."""
        return x[self.order.argsort()]


def can_pack(encoder: nn.Module) -> bool:
    """Return whether an encoder's layers have the structure that this module supports."""
    return type(encoder) in PACKED and not cast(PreTrainedModel, encoder).config.is_decoder


def packed_forward(
    encoder: BertModel,
    input_ids: Tensor,
    mask: Tensor,
    pooling: str,
    wanted: Tensor | None = None,
    run: LayersRun | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute the embeddings of N sentences of up to L tokens, and the last hidden states of selected tokens.

    Args:
        encoder: A BERT, or another encoder for which `can_pack` is true. Its hooks and gradient checkpointing are
            ignored.
        input_ids: (N, L).
        mask: (N, L), 1 for tokens, 0 for padding.
        pooling: One of `modeling_informin.POOLINGS`.
        wanted: (N, L) bool, the selected tokens; None for none.
        run: Function to use instead of `run_layers`.

    Returns:
        Embeddings (N, d), and hidden states (M, d) of the selected tokens in row-major order, or None.
    """
    packed = Packed.once(mask)
    hidden = _embed(encoder, input_ids, mask, packed)  # (T, d)
    layers = cast(list[BertLayer], list(encoder.encoder.layer))
    first_alone = pooling == "cls" and wanted is None
    hidden = (run or run_layers)(layers, hidden, packed, first_alone)
    if first_alone:
        return packed.in_order(hidden), None
    vectors = None
    if wanted is not None:
        index = torch.empty_like(mask.flatten())
        index[packed.at] = torch.arange(len(packed.at), device=mask.device)
        vectors = hidden[index[(wanted & mask.bool()).flatten()]]
    return packed.in_order(_pool(hidden, packed, pooling)), vectors


def _embed(encoder: BertModel, input_ids: Tensor, mask: Tensor, packed: Packed) -> Tensor:
    """Return the input (T, d) of the first layer."""
    if encoder.config.model_type in OFFSET_POSITIONS:
        # The encoder's own numbering, which skips padding tokens that are part of the text.
        table = cast(RobertaEmbeddings, encoder.embeddings)
        positions = table.create_position_ids_from_input_ids(input_ids, table.padding_idx)
    else:
        positions = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    ids, positions = input_ids.flatten()[packed.at], positions.flatten()[packed.at]
    hidden = encoder.embeddings(input_ids=ids[None], position_ids=positions[None])[0]
    project = getattr(encoder, "embeddings_project", None)  # ELECTRA's
    return hidden if project is None else project(hidden)


def run_layers(layers: list[BertLayer], hidden: Tensor, packed: Packed, first_alone: bool) -> Tensor:
    """Apply BERT layers to packed tokens (T, d). With `first_alone`, return only first tokens (N, d).

    In bf16 on a CPU, zeros fill the row up to a multiple of `BF16_ROWS`, because oneDNN keeps code and buffers for each
    shape of a matrix product.
    """
    tokens, (*layers, last) = len(hidden), layers
    if hidden.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        hidden = pad(hidden, (0, 0, 0, -tokens % BF16_ROWS))
    for layer in layers:
        hidden = layer_forward(layer, hidden, packed)
    return layer_forward(last, hidden, packed, first_alone)[:tokens]


def layer_forward(layer: BertLayer, hidden: Tensor, packed: Packed, first_alone: bool = False) -> Tensor:
    """Apply a BERT layer to packed tokens (T, d). With `first_alone`, return only first tokens (N, d)."""
    attention = cast(BertSelfAttention, layer.attention.self)
    queries = hidden[packed.starts] if first_alone else hidden
    heads = [
        projection(x).unflatten(-1, (-1, attention.attention_head_size))  # (T, H, d/H)
        for projection, x in ((attention.query, queries), (attention.key, hidden), (attention.value, hidden))
    ]
    dropout = attention.dropout.p if attention.training else 0.0
    attend = attend_at_once if hidden.is_cuda else attend_by_runs
    query, key, value = heads
    mixed = attend(query, key, value, packed, dropout, attention.scaling, first_alone).flatten(1)
    return layer.feed_forward_chunk(layer.attention.output(mixed, queries))


def attend_by_runs(query, key, value, packed: Packed, dropout: float, scale: float, first_alone: bool) -> Tensor:
    """Return attention (T, H, d/H), or (N, H, d/H) with `first_alone`; one matrix product per sentence length.

    The row can end with zeros. With autocast, attention is computed in float32, because of oneDNN (see `run_layers`).
    """
    tokens = [number * length for number, length in packed.runs]
    tokens.append(len(key) - sum(tokens))
    sizes = [*(number for number, _ in packed.runs), 0] if first_alone else tokens
    # split instead of slices, whose gradients would each be as long as the row.
    if torch.is_autocast_enabled("cpu"):
        query, key, value = query.float(), key.float(), value.float()
    runs = zip(query.split(sizes), key.split(tokens), value.split(tokens))
    outputs = []
    with torch.autocast("cpu", enabled=False):
        for (number, _), run in zip(packed.runs, runs):
            q, k, v = (x.unflatten(0, (number, -1)).transpose(1, 2) for x in run)  # (number, H, length, d/H)
            mixed = scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scale)
            outputs.append(mixed.transpose(1, 2).flatten(0, 1))
    return pad(torch.cat(outputs), (0, 0, 0, 0, 0, sizes[-1]))


def attend_at_once(query, key, value, packed: Packed, dropout: float, scale: float, first_alone: bool) -> Tensor:
    """Return the result of `attend_by_runs`, computed at once with nested tensors (FlashAttention in fp16 and bf16)."""
    lengths = {"min_seqlen": packed.runs[-1][1], "max_seqlen": packed.runs[0][1]}
    layout = {"offsets": packed.ends} | lengths
    query_layout = {"offsets": packed.numbers, "min_seqlen": 1, "max_seqlen": 1} if first_alone else layout
    query, key, value = (
        nested_tensor_from_jagged(x, **layout_of_x).transpose(1, 2)  # (N, H, length, d/H)
        for x, layout_of_x in ((query, query_layout), (key, layout), (value, layout))
    )
    return scaled_dot_product_attention(query, key, value, dropout_p=dropout, scale=scale).transpose(1, 2).values()


def _pool(hidden: Tensor, packed: Packed, pooling: str) -> Tensor:
    """Pool packed tokens (T, d) into embeddings (N, d), in the order of the row."""
    if pooling == "cls":
        return hidden[packed.starts]
    runs = hidden.split([number * length for number, length in packed.runs])
    runs = [run.unflatten(0, (number, -1)) for run, (number, _) in zip(runs, packed.runs)]  # (number, length, d)
    if pooling == "last":
        return torch.cat([run[:, -1] for run in runs])
    dtype = torch.promote_types(hidden.dtype, torch.float32)  # half precision would round sums
    return torch.cat([run.mean(1, dtype=dtype) for run in runs]).to(hidden.dtype)
