"""Copies of a model and of its tokenizer for one call, so that calls in several threads share no setting.

The attention function is a setting of a model's configuration, training is a setting of each of its modules, and
padding and truncation are settings of a tokenizer. A call that changes one of them would change the numbers of calls in
other threads. The copies share everything that is large: weights, buffers, hooks and the vocabulary.
"""

import copy
from typing import Any, TypeVar

from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def copy_for_call(module: AnyModule, attention: str | None = None, training: bool | None = None) -> AnyModule:
    """Return a copy of a module and its submodules, with the same weights and hooks and with settings of its own.

    Args:
        module: The module.
        attention: Name of the attention function of the copy; None for that of the module.
        training: Whether the copy is in training mode; None for the mode of each module.
    """
    return _copied(module, attention, training, {})


def _copied(module: nn.Module, attention: str | None, training: bool | None, done: dict[int, Any]) -> Any:
    if id(module) in done:
        return done[id(module)]
    own = done[id(module)] = object.__new__(type(module))
    values = vars(own)
    values |= vars(module)  # not by copy.copy, which takes five times as long
    values["_compiled_call_impl"] = None  # `module.compile()` compiled it with the settings of the module
    values["_buffers"] = values["_buffers"].copy()
    children = values["_modules"].items()
    values["_modules"] = {name: child and _copied(child, attention, training, done) for name, child in children}
    if training is not None:
        values["training"] = training
    config = values.get("config")
    if attention is not None and isinstance(config, PreTrainedConfig):
        if id(config) not in done:
            done[id(config)] = copy.copy(config)
            vars(done[id(config)])["_attn_implementation_internal"] = attention  # the property sets that of others, too
        values["config"] = done[id(config)]
    return own


def has_other_forward(module: nn.Module) -> bool:
    """Return whether a submodule has a `forward` of its own, such as by accelerate, which a copy would share."""
    return any("forward" in vars(one) for one in module.modules())


def copy_of_tokenizer(tokenizer: Any) -> Any:
    """Return a copy of a tokenizer or processor with the same vocabulary, whose padding and truncation are its own."""
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        inner = vars(tokenizer).get("tokenizer")
        return _with(tokenizer, tokenizer=copy_of_tokenizer(inner)) if inner is not None else tokenizer
    return _with(tokenizer, _tokenizer=_copy_of_backend(tokenizer._tokenizer)) if tokenizer.is_fast else tokenizer


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
