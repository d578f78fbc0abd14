"""Reading without padding: a batch as one row of its tokens, and a last layer that computes what is read of it.

More than a quarter of a batch of sentences of up to 32 tokens is padding, and linear layers do not care where a
sentence ends. Here they see the tokens alone, (T, d), sentences by length, the longest first. Attention works sentence
by sentence: those of one length lie next to each other, a run, so that it takes views of the row and needs no mask and
no index. A GPU, to which many small products are slow, has a kernel that takes all sentences at once. Where only the
first token of the last layer is read, as [CLS] is, the last layer computes its query, its output and its feed-forward
for that token alone; keys and values are all tokens'.

Both are exact: nothing is left out that an embedding depends on.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nested import nested_tensor_from_jagged
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import MODEL_MAPPING, PreTrainedModel

from informin.encoders.architectures import ARCHITECTURES


@dataclass
class Packed:
    """How the N sentences of a batch lie in a row of their T tokens.

    Attributes:
        order: (N,), the sentences, the longest first.
        runs: for each length, how many sentences have it, and the length.
        starts: (N,), places in the row where they begin, in that order.
        at: (T,), places of the tokens in the batch (N, L), row-major.
    """

    order: Tensor
    runs: list[tuple[int, int]]
    starts: Tensor
    at: Tensor

    @classmethod
    def of(cls, mask: Tensor) -> "Packed":
        """Of a batch whose mask (N, L) is 1 at tokens and 0 at padding."""
        lengths, order = mask.sum(1).sort(descending=True, stable=True)
        values, counts = lengths.unique_consecutive(return_counts=True)
        places = torch.arange(mask.numel(), device=mask.device).view_as(mask)
        return cls(
            order=order,
            runs=list(zip(counts.tolist(), values.tolist())),
            starts=lengths.cumsum(0) - lengths,
            at=places[order][mask[order].bool()],
        )

    def in_order(self, x: Tensor) -> Tensor:
        """(N, ...) of sentences by length, in the order of the batch."""
        return x[self.order.argsort()]


def can_pack(encoder: PreTrainedModel) -> bool:
    """Whether an encoder's layers have the form that is read here."""
    row = ARCHITECTURES.get(encoder.config.model_type)
    own = MODEL_MAPPING.get(type(encoder.config), None) is type(encoder)  # not another's of the same name
    return own and row is not None and row.packs and not encoder.config.is_decoder


def read_packed(
    encoder: nn.Module, input_ids: Tensor, mask: Tensor, pooling: str, wanted: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """The embeddings of N sentences of up to L tokens, and what the last layer holds of some tokens.

    Args:
        encoder: of those that `can_pack` tells; its hooks and gradient checkpoints are not heeded.
        input_ids: (N, L).
        mask: (N, L), 1 at tokens, 0 at padding.
        pooling: of `modeling_informin.POOLINGS`.
        wanted: (N, L) bool, the tokens whose vectors are wanted, too.

    Returns:
        The embeddings (N, d), and the vectors (M, d) of the wanted tokens in row-major order, or None.
    """
    packed = Packed.of(mask)
    hidden = _embed(encoder, input_ids, mask, packed)  # (T, d)
    *layers, last = encoder.encoder.layer
    for layer in layers:
        hidden = layer_forward(layer, hidden, packed)
    if pooling == "cls" and wanted is None:
        return packed.in_order(layer_forward(last, hidden, packed, first_alone=True)), None
    hidden = layer_forward(last, hidden, packed)
    vectors = None
    if wanted is not None:
        place = torch.empty_like(mask.flatten())
        place[packed.at] = torch.arange(len(packed.at), device=mask.device)
        vectors = hidden[place[(wanted & mask.bool()).flatten()]]
    return packed.in_order(_pool(hidden, packed, pooling)), vectors


def _embed(encoder: nn.Module, input_ids: Tensor, mask: Tensor, packed: Packed) -> Tensor:
    """(T, d), what the first layer reads."""
    if ARCHITECTURES[encoder.config.model_type].offset_positions:
        # As the encoder numbers them, which passes over a padding token that is part of the text.
        table = encoder.embeddings
        positions = table.create_position_ids_from_input_ids(input_ids, table.padding_idx)
    else:
        positions = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    ids, positions = input_ids.flatten()[packed.at], positions.flatten()[packed.at]
    hidden = encoder.embeddings(input_ids=ids[None], position_ids=positions[None])[0]
    project = getattr(encoder, "embeddings_project", None)  # ELECTRA's
    return hidden if project is None else project(hidden)


def layer_forward(layer: nn.Module, hidden: Tensor, packed: Packed, first_alone: bool = False) -> Tensor:
    """A layer of BERT's form on a row of tokens (T, d): the same of all tokens, or (N, d) of each sentence's first."""
    attention = layer.attention.self
    asking = hidden[packed.starts] if first_alone else hidden
    heads = [
        projection(x).unflatten(-1, (-1, attention.attention_head_size))  # (T, H, d/H)
        for projection, x in ((attention.query, asking), (attention.key, hidden), (attention.value, hidden))
    ]
    dropout = attention.dropout.p if attention.training else 0.0
    attend = attend_at_once if hidden.is_cuda else attend_by_runs
    mixed = attend(*heads, packed, dropout, attention.scaling, first_alone).flatten(1)
    return layer.feed_forward_chunk(layer.attention.output(mixed, asking))


def attend_by_runs(query, key, value, packed: Packed, dropout: float, scale: float, first_alone: bool) -> Tensor:
    """(T, H, d/H), or (N, H, d/H) where the first tokens alone ask; a product for each length of sentences."""
    tokens = [number * length for number, length in packed.runs]
    asking = [number for number, _ in packed.runs] if first_alone else tokens
    outputs = []
    # Not slices: their gradients would each be as long as the row.
    for (number, _), *run in zip(packed.runs, query.split(asking), key.split(tokens), value.split(tokens)):
        q, k, v = (x.unflatten(0, (number, -1)).transpose(1, 2) for x in run)  # (number, H, length, d/H)
        mixed = scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scale)
        outputs.append(mixed.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


def attend_at_once(query, key, value, packed: Packed, dropout: float, scale: float, first_alone: bool) -> Tensor:
    """The same in one product of nested tensors: on GPUs by FlashAttention in half precision, memory-efficient else."""
    lengths = {"min_seqlen": packed.runs[-1][1], "max_seqlen": packed.runs[0][1]}
    read = {"offsets": pad(packed.starts, (0, 1), value=len(key))} | lengths
    one = torch.arange(len(packed.starts) + 1, device=key.device)
    asking = {"offsets": one, "min_seqlen": 1, "max_seqlen": 1} if first_alone else read
    nested = [
        nested_tensor_from_jagged(x, **how).transpose(1, 2)  # (N, H, length, d/H)
        for x, how in ((query, asking), (key, read), (value, read))
    ]
    return scaled_dot_product_attention(*nested, dropout_p=dropout, scale=scale).transpose(1, 2).values()


def _pool(hidden: Tensor, packed: Packed, pooling: str) -> Tensor:
    """(N, d), in the row's order."""
    if pooling == "cls":
        return hidden[packed.starts]
    runs = hidden.split([number * length for number, length in packed.runs])
    runs = [run.unflatten(0, (number, -1)) for run, (number, _) in zip(runs, packed.runs)]  # (number, length, d)
    if pooling == "last":
        return torch.cat([run[:, -1] for run in runs])
    dtype = torch.promote_types(hidden.dtype, torch.float32)  # sums of half precision would be rounded
    return torch.cat([run.mean(1, dtype=dtype) for run in runs]).to(hidden.dtype)
