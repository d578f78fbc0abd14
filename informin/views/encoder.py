"""What the views of a sentence need inside an encoder: dropout rates, factors of the embedding layer, attention maps.

transformers passes one dropout rate for all rows to its attention function, and its faster functions return no maps. A
registered attention function and replaced dropout modules solve both, for every model that takes such functions. A
forward hook multiplies the output of the embedding layer, as views with cutoffs do. No class is patched, and
checkpoints do not change. Here rows are padded; `informin.fast.packing` does the same for packed rows of one view.
"""

import copy
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from informin.errors import UsageError

VIEW_ATTENTION = "informin_views"
PROBE = "informin_probe"
REPLACEABLE = ("sdpa", "eager", VIEW_ATTENTION)


def takes_attention_functions(encoder: PreTrainedModel) -> bool:
    """Return whether a model calls the attention function that is set; for others, setting one is only a warning."""
    return bool(encoder._supports_attention_backend and encoder._can_set_attn_implementation())


def dropout_by_view(x: Tensor, rates: Sequence[float]) -> Tensor:
    """Apply V dropout rates to rows (V*B, ...)."""
    if len(rates) == 1:
        return dropout(x, rates[0])
    return torch.cat([dropout(view, rate) for view, rate in zip(x.chunk(len(rates)), rates)])


class ViewDropout(nn.Dropout):
    """Dropout with one rate per view, for rows stacked by `informin.training.batch.StackedViews`."""

    def __init__(self, default: float, rates: Sequence[float | None]):
        """Set the rates; `default`, the encoder's rate, replaces a rate of None and can be restored later."""
        filled = tuple(default if rate is None else rate for rate in rates)
        super().__init__(max(filled))
        self.default, self.rates = default, filled

    def forward(self, x: Tensor) -> Tensor:
        """Apply V rates to rows (V*B, ...). Return them unchanged outside training."""
        return dropout_by_view(x, self.rates) if self.training else x

    def extra_repr(self) -> str:
        return f"rates={self.rates}"


def view_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Compute attention; transformers calls it with queries, keys and values (N, H, L, d/H).

    Returns:
        The output (N, L, H, d/H), and in training the map (N, H, L, L) after dropout of a layer that `prepare_encoder`
        selected, which `module.kept_map` keeps; else None.
    """
    if module.training and module.keeps_map:
        output, maps = _with_map(module, query, key, value, attention_mask, **kwargs)
        if not kwargs.get("output_attentions"):  # the caller does not ask the encoder for them
            module.kept_map = maps
        return output, maps
    if module.training:
        kwargs["output_attentions"] = False  # otherwise it warns about the missing map of a layer that was not selected
    rates = rates_of(module)
    if not module.training or rates is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    views = zip(*(x.chunk(len(rates)) for x in (query, key, value)))
    masks = [None] * len(rates) if attention_mask is None else attention_mask.chunk(len(rates))
    outputs = [
        sdpa_attention_forward(module, q, k, v, mask, **(kwargs | {"dropout": rate}))[0]
        for (q, k, v), mask, rate in zip(views, masks, rates)
    ]
    return torch.cat(outputs), None


def rates_of(module: Any) -> Sequence[float] | None:
    """Return the dropout rates of the views in an attention module; None if they have the same rate."""
    own = getattr(module, "dropout", None)
    return own.rates if isinstance(own, ViewDropout) else getattr(module, "view_rates", None)


def _with_map(module: Any, query, key, value, attention_mask, **kwargs: Any) -> tuple[Tensor, Tensor]:
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(-2, -1) * (kwargs.get("scaling") or query.shape[-1] ** -0.5)  # (N, H, L, L)
    if attention_mask is None and getattr(module, "is_causal", False):
        attention_mask = torch.ones_like(scores, dtype=torch.bool).tril()
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    rates = rates_of(module) or (kwargs.get("dropout", 0.0),)
    maps = dropout_by_view(scores.softmax(-1), rates)
    return (maps.to(value.dtype) @ value).transpose(1, 2).contiguous(), maps


AttentionInterface.register(VIEW_ATTENTION, view_attention)
AttentionMaskInterface.register(VIEW_ATTENTION, sdpa_mask)


def kept_maps(encoder: nn.Module) -> tuple[Tensor, ...]:
    """Return the attention maps (N, H, L, L) of the selected layers in the last forward pass, and forget them.

    Raises:
        UsageError: A layer kept none.
    """
    maps = []
    modules: Any = encoder.modules()
    for module in modules:
        if getattr(module, "keeps_map", False):
            if getattr(module, "kept_map", None) is None:
                raise UsageError("The model gave no attention maps, which the objective needs", option="model_name")
            maps.append(module.kept_map)
            module.kept_map = None
    return tuple(maps)


def keep_maps(encoder: nn.Module, maps: Sequence[Tensor]) -> None:
    """Let the selected layers keep these attention maps, as if they came from the last forward pass."""
    selected = [module for module in encoder.modules() if getattr(module, "keeps_map", False)]
    module: Any
    for module, kept in zip(selected, maps, strict=True):
        module.kept_map = kept


_calls: ContextVar[dict[nn.Module, list[float]]] = ContextVar("calls")  # of the attention function, while it is probed


def probe_attention(module: nn.Module, *states: Any, **kwargs: Any) -> tuple[Tensor, None]:
    """Compute attention, and note the module that called, with its dropout rate."""
    _calls.get().setdefault(module, []).append(float(kwargs.get("dropout") or 0.0))
    return sdpa_attention_forward(module, *states, **kwargs)[0], None


AttentionInterface.register(PROBE, probe_attention)
AttentionMaskInterface.register(PROBE, sdpa_mask)


def attention_modules(encoder: PreTrainedModel) -> dict[nn.Module, list[float]]:
    """Return the modules that call the attention function, in their order, each with its dropout rate in every call.

    A module that several layers share, as in ALBERT, calls several times. The encoder is called once, on two tokens. No
    other thread may use it.
    """
    implementation, training, device = encoder.config._attn_implementation, encoder.training, encoder.device
    token = _calls.set({})
    encoder.set_attn_implementation(PROBE)
    encoder.train()
    try:
        with torch.no_grad(), torch.random.fork_rng():
            ones = torch.ones(1, 2, dtype=torch.long, device=device)
            encoder(input_ids=2 * ones, attention_mask=ones)
        return _calls.get()
    finally:
        encoder.train(training)
        encoder.set_attn_implementation(implementation)
        _calls.reset(token)


def copy_with_dropout(encoder: Any, rate: float | None = None) -> Any:
    """Return a copy of an encoder, such as a momentum encoder, with one dropout rate for hidden states and attention.

    The copy has no rates per view and keeps no attention maps, whatever `prepare_encoder` set. With None, it has the
    encoder's own rates, or that of the first view.
    """
    copied = copy.deepcopy(encoder)
    if copied.config._attn_implementation == VIEW_ATTENTION:
        copied.set_attn_implementation("sdpa")
        for module in copied.modules():
            module.keeps_map = False
    own = [module.rates[0] for module in encoder.modules() if isinstance(module, ViewDropout)]
    if rate is None and not own:
        return copied
    rate = own[0] if rate is None else rate
    set_dropout(copied, rate)
    for name in numeric_rates(copied.config):  # some models read their rates there
        setattr(copied.config, name, rate)
    return copied


def set_dropout(encoder: nn.Module, rate: float) -> None:
    """Set one dropout rate for hidden states and attention, also of an encoder that had a rate per view."""
    for parent in list(encoder.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Dropout):
                setattr(parent, name, nn.Dropout(rate))
        for name in numeric_rates(parent):
            setattr(parent, name, rate)
        attention: Any = parent
        if getattr(attention, "view_rates", None) is not None:
            attention.view_rates = None


def numeric_rates(module: Any) -> list[str]:
    """Return the names of the dropout rates of a module or configuration, such as `dropout` and `attn_pdrop`.

    BART, OPT and many decoders pass such rates to functions instead of calling nn.Dropout. The probability to drop a
    layer has other names.
    """
    numbers = [name for name, value in vars(module).items() if type(value) in (int, float)]
    return [name for name in numbers if "dropout" in name or name.endswith("pdrop")]


def prepare_encoder(
    encoder: PreTrainedModel, rates: Sequence[float | None] | None = None, map_layers: Sequence[int] = ()
) -> None:
    """Set a dropout rate per view, for hidden states and attention, and make `map_layers` keep their attention maps.

    Args:
        encoder: Changed in place; its weights and their names stay the same.
        rates: One rate per view and, with MLM, one for the masked copy. None means the encoder's own rate, for one of
            them or for all.
        map_layers: Indices of layers. In training, `kept_maps` then returns a map (N, H, L, L) of each.

    Raises:
        UsageError: The encoder takes no attention functions, was loaded with one that cannot be replaced, has no such
            layers, shares one module among layers whose maps are needed, or drops hidden states by functions, which
            have no rate per view.
    """
    implementation = encoder.config._attn_implementation
    if rates is None and not map_layers and implementation != VIEW_ATTENTION:
        return  # nothing to change, and no earlier trainer changed anything
    what = "attention maps" if map_layers else "a dropout rate per view"
    if not takes_attention_functions(encoder):
        raise UsageError(
            f"{type(encoder).__name__} has custom attention, which does not support {what}",
            option="model_name",
            needed="a model that calls the attention functions of transformers",
        )
    if implementation not in REPLACEABLE:
        raise UsageError(
            f"The model was loaded with attn_implementation={implementation!r}, which does not support {what}",
            needed="sdpa or eager",
        )
    for place, parent in list(encoder.named_modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Dropout) and not place.endswith("lora_dropout"):  # which has its own option
                default = child.default if isinstance(child, ViewDropout) else child.p
                setattr(parent, name, nn.Dropout(default) if rates is None else ViewDropout(default, rates))
    found = attention_modules(encoder)
    if map_layers and any(len(calls) > 1 for calls in found.values()):
        raise UsageError(
            f"Layers of {type(encoder).__name__} share a module, which keeps only the attention map of the last one",
            option="model_name",
            needed="a model with a module for each layer, such as BERT",
        )
    if map_layers and max(map_layers) >= len(found):
        raise UsageError(
            f"Attention maps of layer {max(map_layers)} are needed, and {type(encoder).__name__} has modules of its "
            f"own for {len(found)} layers",
            option="model_name",
        )
    if rates is not None:
        raise_if_fixed(encoder, found.keys())
    for number, (module, (rate, *_)) in enumerate(found.items()):
        attention: Any = module
        own = getattr(getattr(attention, "dropout", None), "default", rate)
        attention.keeps_map = number in map_layers
        attention.kept_map = None
        attention.view_rates = None if rates is None else tuple(own if one is None else one for one in rates)
    encoder.set_attn_implementation(VIEW_ATTENTION)


def raise_if_fixed(encoder: PreTrainedModel, attention: Set[nn.Module]) -> None:
    """Raise UsageError if an encoder drops hidden states by functions.

    Args:
        encoder: The encoder.
        attention: Its modules that call the attention function, which can have a rate per view.
    """
    for module in encoder.modules():
        fixed = [name for name in numeric_rates(module) if getattr(module, name) > 0]
        if fixed and module not in attention:
            raise UsageError(
                f"{type(encoder).__name__} drops hidden states by functions with one rate, `{fixed[0]}` of "
                f"{type(module).__name__}",
                option="view_dropout",
                needed="an encoder whose dropout is in modules, or one rate for both views",
            )


# Factors of the embedding layer

_factors: ContextVar[list[Tensor]] = ContextVar("factors")  # those of the next call, or none


@contextmanager
def scaled_embeddings(factors: Tensor | None) -> Iterator[None]:
    """Multiply the output (N, L, d) of the embedding layer by factors of this shape, in this thread; None for 1.

    The factors are those of the first call. The encoders of heads, which are called later, encode other rows.
    """
    token = _factors.set([] if factors is None else [factors])
    try:
        yield
    finally:
        _factors.reset(token)


def scale_embeddings(encoder: Any) -> None:
    """Let an encoder multiply the output of its embedding layer by the factors of `scaled_embeddings`."""
    own = getattr(encoder, "embeddings", None)
    table = encoder.get_input_embeddings().weight
    same = [one for one in encoder.modules() if isinstance(one, nn.Embedding) and one.weight is table]  # T5 has two
    for layer in [own] if isinstance(own, nn.Module) else same:
        if _scale not in layer._forward_hooks.values():
            layer.register_forward_hook(_scale)


def _scale(layer: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
    waiting = _factors.get([])
    if not waiting:
        return None
    factors = waiting.pop().to(output.dtype)
    scaled = output[: len(factors)] * factors
    return torch.cat([scaled, output[len(factors) :]])  # rows of no view may follow, such as replayed sentences


def dense_factors(factors: Sequence[Tensor | None], mask: Tensor) -> Tensor | None:
    """Return factors (N, L, d) of padded rows, 1 for padding; None if no row has any.

    Args:
        factors: Those of each row, (l, 1), (1, d) or (l, d) for l tokens; None for 1.
        mask: Attention mask, (N, L), on the CPU.
    """
    width = max((one.shape[1] for one in factors if one is not None), default=0)
    if not width:
        return None
    dense = torch.ones(*mask.shape, width)
    for row, there, own in zip(dense, mask.bool(), factors):
        if own is not None:
            row[there] = own.expand(int(there.sum()), width).to(dense.device)
    return dense
