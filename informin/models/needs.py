"""What a run needs from the model in training, and the options that exclude it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from accelerate.utils import str_to_bool

from informin.errors import UsageError


@dataclass(frozen=True)
class Needs:
    """What a run needs from the model in training.

    Attributes:
        projection_head: The papers' head on top of the embedding.
        lm_head: A pretrained language-model head.
        map_layers: Layers whose attention maps the terms read, counted from 0.
        momentum: A term keeps a moving average of the encoder.
        dropout: One rate for hidden states and attention, instead of the encoder's own; None for its own.
        view_rates: Dropout rates of view 1 and view 2; None if both have the same rate.
        copies: Rows per sentence in one forward pass: its views, and a masked copy.
        views_differ_by_dropout: A term compares two views of the same tokens, so that some dropout must be above 0.
        settings: What `config.informin` records beside the pooling and the heads.
        asked_by: Option that an error names, by the name of the need, such as `queue_size` for `momentum`.
    """

    projection_head: bool
    lm_head: bool = False
    map_layers: tuple[int, ...] = ()
    momentum: bool = False
    dropout: float | None = None
    view_rates: tuple[float, float] | None = None
    copies: int = 2
    views_differ_by_dropout: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    asked_by: dict[str, str] = field(default_factory=dict)

    def option(self, need: str) -> str:
        """Return the option that an error about a need names."""
        return self.asked_by.get(need, need)


def unpackable(args: Any, needs: Needs) -> list[str]:
    """Return the options that require padded batches."""
    reasons = {
        "`view_dropout`": needs.view_rates is not None,
        "attention maps": bool(needs.map_layers),
    }
    return [reason for reason, holds in reasons.items() if holds] + uncapturable(args)


def uncapturable(args: Any) -> list[str]:
    """Return the options that require the encoder's usual forward pass: neither packed nor as a CUDA graph."""
    reasons = {
        "`gradient_checkpointing`": args.gradient_checkpointing,
        "`torch_compile`": args.torch_compile,
        "`neftune_noise_alpha`": args.neftune_noise_alpha is not None,  # scaled by the padded length of the batch
    }
    return [reason for reason, holds in reasons.items() if holds] + sharded_by(args)


def sharded_by(args: Any) -> list[str]:
    """Return which of FSDP and DeepSpeed shard weights, gradients or optimizer state across processes."""
    plugins = {"FSDP": args.fsdp, "DeepSpeed": args.deepspeed}
    launched = {name: str_to_bool(os.environ.get(f"ACCELERATE_USE_{name.upper()}", "false")) for name in plugins}
    return [name for name, value in plugins.items() if value or launched[name]]


@contextmanager
def naming(option: str) -> Iterator[None]:
    """Let a UsageError that names no option of the run name this one."""
    try:
        yield
    except UsageError as error:
        if error.option == "model_name":
            error.option = option
        raise


def check_options(args: Any, needs: Needs) -> None:
    """Raise UsageError for options that exclude each other."""
    if args.gradient_cache_chunk_size and needs.map_layers:
        option = needs.option("map_layers")
        raise UsageError(
            f"discards activations, and `{option}` needs the attention maps of the whole batch at once",
            option="gradient_cache_chunk_size",
            fix="Leave one out.",
        )
    sharding = sharded_by(args)
    if needs.momentum and sharding:
        option = needs.option("momentum")
        raise UsageError(
            f"needs whole weights for its momentum encoder, and {sharding[0]} shards them across processes",
            option=option,
            fix=f"Set `{option}` to 0, or use another file from configs/accelerate.",
        )


def check_static(needs: Needs) -> None:
    """Raise UsageError for what only an encoder has, and a table of token vectors has not."""
    wanted = {
        "map_layers": needs.map_layers,
        "lm_head": needs.lm_head,
        "momentum": needs.momentum,
        "projection_head": needs.projection_head,
        "dropout": needs.dropout is not None,
        "view_rates": needs.view_rates,
    }
    for need, holds in wanted.items():
        if holds:
            option = needs.option(need)
            raise UsageError(
                "needs an encoder, and this model is a table of token vectors",
                option=option,
                fix=f"Leave `{option}` out, or use another model.",
            )
