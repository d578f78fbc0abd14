"""What fills an option that nobody gave: the paper's row for the encoder, the objective, the hardware.

The command line and Python both come here. An option that is given wins; a file of options is weaker than the command
line, and `command_line` has put the two together before.
"""

import os
from dataclasses import fields

import torch
from transformers import PreTrainedConfig, TrainingArguments
from transformers.utils import is_torch_bf16_gpu_available

from informin.errors import UsageError
from informin.files import last_name
from informin.objectives import OBJECTIVES, Term
from informin.objectives.terms import require
from informin.views import VIEWS, View

# Of these None says that it was not given.
FILLED = (
    *("bf16", "learning_rate", "per_device_train_batch_size", "projection_head", "view_dropout", "padding_free"),
    "max_seq_length",
)
# Filled in too, by no row of a paper.
NOT_PUBLISHED = ("bf16", "output_dir", "projection_head", "pooler", "prompt", "padding_free", "max_seq_length")
SHARED = ("objective", "view_dropout")  # options that every objective reads


def terms() -> list[type[Term]]:
    """Those of all objectives, each once."""
    return list(dict.fromkeys(term for objective in OBJECTIVES.values() for term in objective.terms))


def term_options() -> dict[str, object]:
    """Return the options of all terms and views, with their defaults."""
    return {field.name: field.default for kind in option_kinds() for field in fields(kind)}


def option_kinds() -> list[type[Term] | type[View]]:
    """Return the terms of all objectives and the views, whose fields are options."""
    return [*terms(), *VIEWS.values()]


def filled_in(given: dict, config: PreTrainedConfig | None = None) -> tuple[dict, str | None]:
    """The options that nobody gave and that have a better value than their default, and the name of the paper's row.

    Args:
        given: the options that somebody chose, by name.
        config: of the encoder; None while it is not known, which takes BERT-base's row.

    Raises:
        UsageError: an unknown objective, or an option that has no effect.
    """
    name = given.get("objective", "informin")
    if name not in OBJECTIVES:
        raise UsageError(f"`objective` {name} is unknown; needed one of: {', '.join(OBJECTIVES)}.")
    objective, given = OBJECTIVES[name], {option: value for option, value in given.items() if value is not None}
    refuse_unread(name, given)
    row = objective.row(config.model_type, config.hidden_size) if config else objective.row("bert", 768)
    values = {}
    if row:
        batch = max(1, row.batch_size // processes())
        values = {"per_device_train_batch_size": batch, "learning_rate": row.learning_rate}
        unread = term_options().keys() - set(read_options(name, row.options | given)[0])
        values |= {option: value for option, value in row.options.items() if option not in unread}
        if "view_dropout_rate" in given:  # one rate for both views, in their place
            values.pop("view_dropout", None)
        values = {option: value for option, value in values.items() if option not in given}
    shared = {"projection_head": objective.projection_head, "max_seq_length": objective.max_seq_length}
    others = shared | bf16(given)
    others = {option: value for option, value in others.items() if option not in given}
    return values | others, row.name if values else None


def uneven_batch(given: dict, config: PreTrainedConfig) -> str | None:
    """What is read instead where the paper's batch, which nobody chose another for, does not part evenly."""
    row, number = OBJECTIVES[given.get("objective", "informin")].row(config.model_type, config.hidden_size), processes()
    if row is None or given.get("per_device_train_batch_size") is not None or row.batch_size % number == 0:
        return None
    each = max(1, row.batch_size // number)
    return (
        f"The paper's batch of {row.batch_size} sentences does not part into {number} processes: each reads {each} a "
        f"step, {each * number} together. `per_device_train_batch_size` chooses another."
    )


def read_options(objective: str, options: dict) -> tuple[list[str], list[str]]:
    """The options that an objective reads with these weights, and in words those that it could."""
    weights = OBJECTIVES[objective].defaults | options
    read, more = [*SHARED], []
    for term in OBJECTIVES[objective].terms:
        own = [field.name for field in fields(term)]
        if term.weight is None or weights.get(term.weight):
            read += own
        else:
            read.append(term.weight)
            own.remove(term.weight)
            more += [f"with `{term.weight}` above 0 also {', '.join(own)}"] if own else []
    return read, more


def refuse_unread(objective: str, given: dict) -> None:
    """Raises UsageError for an option of a term that the objective has not, or that is off."""
    refuse_other_views(given.get("view", "dropout"), given)
    read, more = read_options(objective, given)
    for name in [field.name for term in terms() for field in fields(term)]:
        if name not in read and given.get(name):  # to turn off what is not there is no mistake
            raise UsageError(
                f"`{name}` {given[name]} has no effect with `objective` {objective} as it is set. It reads: "
                f"{'; '.join([', '.join(read[1:]), *more])}."
            )


def refuse_other_views(view: str, given: dict) -> None:
    """Raise UsageError for an unknown view, or an option of a view other than the chosen one."""
    require(view in VIEWS, "view", view, f"one of: {', '.join(VIEWS)}")
    own = {field.name for field in fields(VIEWS[view])}
    for name, kind in VIEWS.items():
        for option in {field.name for field in fields(kind)} - own:
            if given.get(option):
                raise UsageError(
                    f"{given[option]} has no effect with `view` {view}",
                    option=option,
                    fix=f"Set `view` to {name}, or leave `{option}` out.",
                )


def bf16(given: dict) -> dict:
    """bf16 where the hardware has it, unless the user or the launcher chose a precision."""
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if {"bf16", "fp16"} & given.keys() or launched != "no":
        return {}
    if given.get("use_cpu") or torch.accelerator.current_accelerator() is None:
        return {"bf16": torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()}
    return {"bf16": is_torch_bf16_gpu_available()}


def default_output_dir(model_name: str, args: TrainingArguments) -> str:
    """outputs/MODEL-OBJECTIVE-batchN-lrX-seedN, the batch over all processes."""
    rate = f"{args.learning_rate:g}".replace("e-0", "e-")
    batch = args.per_device_train_batch_size * processes()
    return f"outputs/{last_name(model_name)}-{args.objective}-batch{batch}-lr{rate}-seed{args.seed}"


def processes() -> int:
    """How many a launcher has started."""
    return int(os.environ.get("WORLD_SIZE", 1))
