"""Check that a native encoder can be trained, with the options of a run."""

import os
from collections.abc import Callable
from typing import Any

import torch
from accelerate.utils import str_to_bool
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from informin.errors import UsageError, counted, error_line
from informin.models.architectures import ARCHITECTURES, InforMinModel, architecture_of
from informin.objectives.terms import Term

MAPS, HEAD = "attention maps", "a language-model head"


def refuse_unsafe(model: InforMinModel) -> None:
    """Raise UsageError for an architecture without a row in `ARCHITECTURES` that fails a test with one sentence.

    The embeddings must not depend on the padding of the batch, and every weight must get a gradient: with several
    processes, each would otherwise wait for the gradients of the others.
    """
    pad = model.config.pad_token_id or 0
    words = [word for word in range(5) if word != pad][-3:]
    try:
        alone, padded = (
            model.base_model(
                input_ids=torch.tensor([words + [pad] * more]), attention_mask=torch.tensor([[1] * 3 + [0] * more])
            ).last_hidden_state[:, :3]
            for more in (0, 2)
        )
        alone.sum().backward()
        fits = alone.shape == (1, 3, model.config.hidden_size) and torch.allclose(alone, padded, rtol=1e-3, atol=1e-4)
        problem = None if fits else "its output depends on the padding of the batch"
    except Exception as error:  # a model that was never tested here can raise anything
        problem = f"{error_line(error)} ({type(error).__name__})"
    unused = [name for name, x in model.base_model.named_parameters() if x.requires_grad and x.grad is None]
    if problem is None and unused:
        problem = f"{counted(len(unused), 'weight')} get no gradient from a sentence, such as {unused[0]}"
    model.zero_grad()
    if problem:
        raise UsageError(
            f"The architecture {model.config.model_type!r} cannot be trained here: {problem}",
            needed=f"an encoder of: {', '.join(ARCHITECTURES)}",
        )


def refuse_without_dropout(encoder: PreTrainedModel) -> None:
    """Raise UsageError if every dropout rate is 0: the two views of a sentence differ only by dropout."""
    if not any(module.p > 0 for module in encoder.modules() if isinstance(module, nn.Dropout)):
        dropouts = " and ".join(architecture_of(encoder.config).dropouts)
        raise UsageError(
            "Every dropout rate of this model is 0, so the two views of a sentence would be identical",
            fix=f"Set `view_dropout_rate`, for example to 0.1, `view_dropout`, or {dropouts} in config.json.",
        )


def refuse_other_heads(model: InforMinModel, heads: dict) -> None:
    """Raise UsageError if the model's heads are not those that the objective needs.

    A missing head cannot be used, and an unused head gets no gradient, which breaks training with several processes.

    Args:
        model: Loaded model.
        heads: Settings of the heads by their names in `config.informin`.
    """
    for name, needed in heads.items():
        if (built := model.config.informin[name]) != needed:
            raise UsageError(
                f"The model was built with {name} = {built}",
                needed=f"{name} = {needed} for this objective",
                fix="Load it with informin.models.native_loading.load_trainable and `args.model_settings`.",
            )


def check_architecture(config: PreTrainedConfig, args: Any, supports: Callable[[Term], str | None]) -> None:
    """Raise UsageError for options that the encoder's architecture does not support.

    Args:
        config: Configuration of the encoder.
        args: Arguments of the run.
        supports: See `Model.supports`.
    """
    row = architecture_of(config)
    maps = [name for name, other in ARCHITECTURES.items() if other.attention]
    heads = [name for name, other in ARCHITECTURES.items() if other.lm_head]
    for term in args.terms:
        if what := supports(term):
            _refuse_for(config, term.weight, what, f"Set `{term.weight}` to 0", maps if what == MAPS else heads)
        _check_memory(args, term)
    if args.view_dropout and row.attention is None:
        instead = "Use `view_dropout_rate`, one rate for both views"
        _refuse_for(config, "view_dropout", "attention dropout that can be set per view", instead, maps)
    if args.padding_free and (reason := unpackable(args, config)):
        raise UsageError(f"cannot be combined with {reason}", option="padding_free", fix="Leave one out.")
    if args.gradient_checkpointing and not row.model.supports_gradient_checkpointing:
        able = [name for name, other in ARCHITECTURES.items() if other.model.supports_gradient_checkpointing]
        _refuse_for(config, "gradient_checkpointing", "layers that can be recomputed", "Leave it out", able)


def _check_memory(args: Any, term: Term) -> None:
    if args.gradient_cache_chunk_size and term.reads_maps:
        raise UsageError(
            f"discards activations until they are recomputed, and `{term.weight}` needs the attention maps of the "
            "whole batch at once",
            option="gradient_cache_chunk_size",
            fix="Leave one out.",
        )
    if term.follows_weights and (sharding := sharded_by(args)):
        raise UsageError(
            f"needs whole weights for its momentum encoder, and {sharding[0]} shards them across processes",
            option=term.weight,
            fix=f"Set `{term.weight}` to 0, or use another file from configs/accelerate.",
        )


def _refuse_for(config: PreTrainedConfig, name: str | None, needed: str, instead: str, able: list[str]) -> None:
    raise UsageError(
        f"needs {needed}, which is not supported for the architecture {config.model_type!r}",
        option=name,
        fix=f"{instead}, or use one of these encoders: {', '.join(able)}.",
    )


def unpackable(args: Any, config: PreTrainedConfig) -> str | None:
    """Return the first option or property that requires padded batches, or None."""
    reasons = {
        f"the architecture {config.model_type!r}": not architecture_of(config).packs,
        "`view_dropout`": args.view_dropout is not None,
        "attention maps": any(term.reads_maps for term in args.terms),
        "`gradient_checkpointing`": args.gradient_checkpointing,
        "`torch_compile`": args.torch_compile,
        "`neftune_noise_alpha`": args.neftune_noise_alpha is not None,  # scaled by the padded length of the batch
        **dict.fromkeys(sharded_by(args), True),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def sharded_by(args: Any) -> list[str]:
    """Return which of FSDP and DeepSpeed shard weights, gradients or optimizer state across processes."""
    plugins = {"FSDP": args.fsdp, "DeepSpeed": args.deepspeed}
    return [name for name, given in plugins.items() if given or _launched_with(name.upper())]


def _launched_with(plugin: str) -> bool:
    """Return whether accelerate launch enabled FSDP or DEEPSPEED."""
    return str_to_bool(os.environ.get(f"ACCELERATE_USE_{plugin}", "false")) == 1
