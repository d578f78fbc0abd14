"""Default values of options, from the paper, the objective and the hardware.

The command line and the Python API share this module. Options that are already set are not changed.
"""

import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedConfig
from transformers.utils import is_torch_bf16_gpu_available

from informin.errors import UsageError
from informin.files import last_name
from informin.objectives import OBJECTIVES
from informin.objectives.terms import PaperRow, require
from informin.training.term_fields import term_options, terms
from informin.views import VIEWS

if TYPE_CHECKING:
    from informin.training.options import InforMinTrainingArguments

SHARED = ("objective", "view_dropout")  # options of every objective
WITHOUT_PAPER = {
    "per_device_train_batch_size": 128,
    "learning_rate": 3e-5,
    "warmup_steps": 0,
}  # without a paper


def paper_row(objective: str, config: PreTrainedConfig | None = None) -> PaperRow | None:
    """Return the published values of an objective for an encoder; without a configuration, those for BERT-base."""
    row = OBJECTIVES[objective].row
    return row(config.model_type, config.hidden_size) if config else row("bert", 768)


def filled_in(args: "InforMinTrainingArguments", config: PreTrainedConfig | None = None) -> dict[str, Any]:
    """Return values for the options in `args` that are None. Options whose default is None are left out.

    Args:
        args: `InforMinTrainingArguments`.
        config: Configuration of the encoder; None uses the published values for BERT-base.
    """
    objective = OBJECTIVES[args.objective]
    shared: dict[str, Any] = {
        "projection_head": objective.projection_head,
        "max_seq_length": objective.max_seq_length,
    }
    saved = args.save_strategy or save_strategy(args)
    shared |= mixed_precision(args) | {"save_strategy": saved}
    shared |= {"save_steps": args.eval_steps or 125} if saved == "steps" else {}
    values = WITHOUT_PAPER | own_options(args) | shared | published(args, config)
    return {name: value for name, value in values.items() if value is not None and getattr(args, name) is None}


def save_strategy(args: "InforMinTrainingArguments") -> str:
    """Return when checkpoints are saved by default: by steps if `save_steps` is given, else at the evaluations."""
    return "epoch" if args.eval_strategy == "epoch" and args.save_steps is None else "steps"


def published(args: "InforMinTrainingArguments", config: PreTrainedConfig | None = None) -> dict[str, Any]:
    """Return the paper's values for the options in `args` that are None and have an effect."""
    row = paper_row(args.objective, config)
    if row is None:
        return {}
    chosen = {name: getattr(args, name) for name in own_options(args) if getattr(args, name) is not None}
    unused = {own.name for term in terms() for own in fields(term)} - set(
        used_options(args.objective, row.options | chosen)[0]
    )
    if args.view_dropout_rate is not None:  # replaces the two rates
        unused |= {"view_dropout"}
    batch = max(1, row.batch_size // number_of_processes())
    values = {"per_device_train_batch_size": batch, "learning_rate": row.learning_rate} | row.options
    return {name: v for name, v in values.items() if name not in unused and getattr(args, name) is None}


def own_options(args: "InforMinTrainingArguments") -> dict[str, Any]:
    """Return the options of terms and views that are fields of `args`, with their defaults."""
    known, options = {field.name for field in fields(args)}, term_options()
    return {name: default for name, default in options.items() if name in known}


def uneven_batch(args: "InforMinTrainingArguments", config: PreTrainedConfig) -> str | None:
    """Return a warning if the paper's batch size is used and cannot be split evenly across processes."""
    row, number = paper_row(args.objective, config), number_of_processes()
    if row is None or args.per_device_train_batch_size is not None or row.batch_size % number == 0:
        return None
    each = max(1, row.batch_size // number)
    return (
        f"The paper's batch of {row.batch_size} sentences cannot be split evenly across {number} processes: each uses "
        f"{each} per step, {each * number} in total. Set `per_device_train_batch_size` to use another size."
    )


def used_options(objective: str, options: dict) -> tuple[list[str], list[str]]:
    """Return the options that an objective uses with these weights, and messages about those that are off."""
    weights = OBJECTIVES[objective].defaults | options
    used, more = [*SHARED], []
    for term in OBJECTIVES[objective].terms:
        own = [field.name for field in fields(term)]
        if term.weight is None or weights.get(term.weight):
            used += own
        else:
            used.append(term.weight)
            own.remove(term.weight)
            more += [f"with `{term.weight}` above 0 also {', '.join(own)}"] if own else []
    return used, more


def refuse_unused(args: "InforMinTrainingArguments") -> None:
    """Raise UsageError if an option belongs to a term that the objective does not have or that is off.

    Zero and the term's own default are accepted.
    """
    defaults = own_options(args)
    given = {name: getattr(args, name) for name in defaults if getattr(args, name) not in (None, defaults[name])}
    refuse_other_views(args.view, given)
    weights = {name: getattr(args, name) for name in defaults if getattr(args, name) is not None}
    used, more = used_options(args.objective, weights)
    for name in [own.name for term in terms() for own in fields(term)]:
        value = given.get(name)
        if name not in used and value:
            raise UsageError(
                f"{value} has no effect with `objective` {args.objective} as configured",
                option=name,
                fix=f"Options in use: {'; '.join([', '.join(used[1:]), *more])}.",
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


def mixed_precision(args: "InforMinTrainingArguments") -> dict[str, bool]:
    """Return `bf16` and `fp16`: bfloat16 if the hardware supports it, unless the user or the launcher chose."""
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if args.bf16 is not None or args.fp16 is not None or launched != "no":
        return {"bf16": False, "fp16": False}
    if args.use_cpu or torch.accelerator.current_accelerator() is None:
        supported = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    else:
        supported = is_torch_bf16_gpu_available()
    return {"bf16": supported, "fp16": False}


def default_output_dir(model_name: str, args: "InforMinTrainingArguments") -> str:
    """Return outputs/MODEL-OBJECTIVE-batchN-lrX-seedN, with the batch size summed over processes."""
    rate = f"{args.learning_rate:g}".replace("e-0", "e-")
    batch = (args.per_device_train_batch_size or 1) * number_of_processes()
    return f"outputs/{last_name(model_name)}-{args.objective}-batch{batch}-lr{rate}-seed{args.seed}"


def number_of_processes() -> int:
    """Return the number of processes that the launcher started."""
    return int(os.environ.get("WORLD_SIZE", 1))
