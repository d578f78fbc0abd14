"""Inside the encoder: a dropout rate for each view, and attention maps of chosen layers.

transformers' BERT hands its attention function one dropout rate for all rows, and gives the maps of all layers or of
none. Both are settled here by a registered attention function and by the dropout modules; no class is patched, and a
checkpoint knows nothing of it.
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
    """Dropout whose rate depends on the view. Rows are whole views after one another, as `stack_views` makes them."""

    def __init__(self, own: float, rates: Sequence[float | None]):
        """`own` is the encoder's rate, to go back to, and that of the views whose rate is None."""
        rates = tuple(own if rate is None else rate for rate in rates)
        super().__init__(max(rates))
        self.own, self.rates = own, rates

    def forward(self, x: Tensor) -> Tensor:
        """(V*B, ...) for V rates, the same shape; unchanged outside training."""
        if not self.training:
            return x
        return torch.cat([dropout(view, rate) for view, rate in zip(x.chunk(len(self.rates)), self.rates)])

    def extra_repr(self) -> str:
        return f"rates={self.rates}"


def view_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs
) -> tuple[Tensor, Tensor | None]:
    """Attention as transformers calls it: (N, H, L, d/H) each, to the output (N, L, H, d/H) and, in training, the maps.

    Maps (N, H, L, L) are those after dropout, and only of the layers that `prepare_encoder` chose.
    """
    if module.training and module.keeps_map:
        return _with_map(module, query, key, value, attention_mask, kwargs["scaling"])
    if module.training:
        kwargs["output_attentions"] = False  # or it warns that it has no map, of a layer that was not chosen
    if not module.training or not isinstance(module.dropout, ViewDropout):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    rates = module.dropout.rates
    views = zip(*(x.chunk(len(rates)) for x in (query, key, value)))
    masks = [None] * len(rates) if attention_mask is None else attention_mask.chunk(len(rates))
    outputs = [
        sdpa_attention_forward(module, *view, mask, **(kwargs | {"dropout": rate}))[0]
        for view, mask, rate in zip(views, masks, rates)
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
    """Gives each view its dropout rate, hidden and attention, and has `map_layers` return their maps in training.

    Args:
        encoder: changed in place, its weights and their names are not.
        attentions: the self-attention of each of its layers.
        rates: one for each view and, with MLM, for the masked copy; None, for one or for all, is the encoder's own.
        map_layers: from 0. With `output_attentions=True` the output's `attentions` has a map (N, H, L, L) for each.

    Raises:
        UsageError: the encoder was loaded with an attention implementation that this cannot stand in for.
    """
    implementation = encoder.config._attn_implementation
    if rates is None and not map_layers and implementation != NAME:
        return  # nothing to change, and nothing left of an earlier trainer
    if implementation not in REPLACEABLE:
        what = "attention maps" if map_layers else "a dropout rate for each view"
        raise UsageError(
            f"The model was loaded with attn_implementation={implementation!r}, which cannot give {what}. Load it with "
            "one of: sdpa, eager."
        )
    for parent in list(encoder.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Dropout):
                own = child.own if isinstance(child, ViewDropout) else child.p
                setattr(parent, name, nn.Dropout(own) if rates is None else ViewDropout(own, rates))
    for i, attention in enumerate(attentions):
        attention.keeps_map = i in map_layers
    AttentionInterface.register(NAME, view_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    encoder.set_attn_implementation(NAME)
