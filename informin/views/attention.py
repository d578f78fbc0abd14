"""Give an encoder one dropout rate per view, and return the attention maps of selected layers.

transformers' BERT passes one dropout rate for all rows to its attention function, and returns the maps of all layers or
none. A registered attention function and replaced dropout modules solve both. No class is patched, and checkpoints do
not change.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from informin.errors import UsageError

NAME = "informin_views"
REPLACEABLE = ("sdpa", "eager", NAME)


class ViewDropout(nn.Dropout):
    """Dropout with one rate per view, for rows stacked by `informin.views.stacking.StackedViews`."""

    def __init__(self, default: float, rates: Sequence[float | None]):
        """Set the rates; `default`, the encoder's rate, replaces a rate of None and can be restored later."""
        filled = tuple(default if rate is None else rate for rate in rates)
        super().__init__(max(filled))
        self.default, self.rates = default, filled

    def forward(self, x: Tensor) -> Tensor:
        """Apply V rates to rows (V*B, ...). Return them unchanged outside training."""
        if not self.training:
            return x
        return torch.cat([dropout(view, rate) for view, rate in zip(x.chunk(len(self.rates)), self.rates)])

    def extra_repr(self) -> str:
        return f"rates={self.rates}"


def view_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs
) -> tuple[Tensor, Tensor | None]:
    """Compute attention; transformers calls it with queries, keys and values (N, H, L, d/H).

    Returns:
        The output (N, L, H, d/H) and, in training, the maps (N, H, L, L) after dropout if `prepare_encoder` selected
        the layer, else None.
    """
    if module.training and module.keeps_map:
        return _with_map(module, query, key, value, attention_mask, kwargs["scaling"])
    if module.training:
        kwargs["output_attentions"] = False  # otherwise it warns about the missing map of a layer that was not selected
    if not module.training or not isinstance(module.dropout, ViewDropout):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    rates = module.dropout.rates
    views = zip(*(x.chunk(len(rates)) for x in (query, key, value)))
    masks = [None] * len(rates) if attention_mask is None else attention_mask.chunk(len(rates))
    outputs = [
        sdpa_attention_forward(module, q, k, v, mask, **(kwargs | {"dropout": rate}))[0]
        for (q, k, v), mask, rate in zip(views, masks, rates)
    ]
    return torch.cat(outputs), None


def _with_map(module, query, key, value, attention_mask, scaling) -> tuple[Tensor, Tensor]:
    scores = query @ key.transpose(-2, -1) * scaling  # (N, H, L, L)
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    maps = module.dropout(scores.softmax(-1))
    return (maps.to(value.dtype) @ value).transpose(1, 2).contiguous(), maps


def prepare_encoder(
    encoder: PreTrainedModel,
    attentions: Sequence[nn.Module],
    rates: Sequence[float | None] | None = None,
    map_layers: Sequence[int] = (),
) -> None:
    """Set a dropout rate per view, for hidden states and attention, and make `map_layers` return their attention maps.

    Args:
        encoder: Changed in place; its weights and their names stay the same.
        attentions: The self-attention module of each layer.
        rates: One rate per view and, with MLM, one for the masked copy. None means the encoder's own rate, for one of
            them or for all.
        map_layers: Indices of layers. With `output_attentions=True`, the output's `attentions` has a map (N, H, L, L)
            for each of them in training.

    Raises:
        UsageError: The encoder was loaded with an attention implementation that cannot be replaced.
    """
    implementation = encoder.config._attn_implementation
    if rates is None and not map_layers and implementation != NAME:
        return  # nothing to change, and no earlier trainer changed anything
    if implementation not in REPLACEABLE:
        what = "attention maps" if map_layers else "a dropout rate per view"
        raise UsageError(
            f"The model was loaded with attn_implementation={implementation!r}, which does not support {what}",
            needed="sdpa or eager",
        )
    for parent in list(encoder.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Dropout):
                default = child.default if isinstance(child, ViewDropout) else child.p
                setattr(parent, name, nn.Dropout(default) if rates is None else ViewDropout(default, rates))
    for i, attention in enumerate(attentions):
        setattr(attention, "keeps_map", i in map_layers)  # noqa: B010, a module's type knows no such attribute
    AttentionInterface.register(NAME, view_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    encoder.set_attn_implementation(NAME)
