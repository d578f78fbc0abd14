"""The options of terms and views, and default values from the paper, the objective and the hardware.

The command line and the Python API share this module. Options that are already set are not changed.
"""

import os
from collections.abc import Mapping
from dataclasses import Field, field, fields, make_dataclass
from typing import Any, Optional, get_type_hints

import torch
from transformers import PreTrainedConfig
from transformers.utils import is_torch_bf16_gpu_available

from informin.files import last_name
from informin.objectives import OBJECTIVES, Term
from informin.objectives.terms import PaperRow
from informin.views import VIEWS, View

WITHOUT_PAPER = {"per_device_train_batch_size": 128, "learning_rate": 3e-5, "warmup_steps": 0}


def terms() -> list[type[Term]]:
    """Return the terms of all objectives, without duplicates."""
    return list(dict.fromkeys(term for objective in OBJECTIVES.values() for term in objective.terms))


def option_kinds() -> list[type[Term] | type[View]]:
    """Return the terms of all objectives and the views, whose fields are options."""
    return [*terms(), *VIEWS.values()]


def option_defaults() -> dict[str, Any]:
    """Return the options of all terms and views, with their own defaults."""
    return {field.name: field.default for kind in option_kinds() for field in fields(kind)}


def option_fields() -> list[tuple[str, Any, Field]]:
    """Return the options of terms and views as fields for `dataclasses.make_dataclass`.

    Each field is None by default: `InforMinTrainingArguments.resolve` fills in the paper's value, else the term's
    default. The help text names both.
    """
    declared: list[tuple[str, Any, Field]] = []
    for kind in option_kinds():
        hints = get_type_hints(kind)
        for one in fields(kind):
            metadata = dict(one.metadata) | {"help": one.metadata["help"] + default_text(one.name, one.default)}
            if one.type is bool:
                metadata |= {"nargs": "?", "const": True}  # `--masked_views` alone means true
            argument: Any = field(default=None, metadata=metadata)
            declared.append((one.name, Optional[hints[one.name]], argument))
    return declared


def default_text(name: str, default: object) -> str:
    """Return the sentence about an option's default for its help text: the papers' values, then the general one."""
    published = {key: entry.defaults[name] for key, entry in OBJECTIVES.items() if name in entry.defaults}
    general = "0 (off)" if default == 0 and default is not False else str(default).lower()
    if not published or list(published.values()) == [default]:
        return "" if default is None else f" Default: {general}."
    values = [f"{' '.join(map(str, v)) if isinstance(v, list) else v} for {key}" for key, v in published.items()]
    return f" Default: {', '.join(values + ([] if default is None else [f'else {general}']))}."


def paper_row(objective: str, config: PreTrainedConfig | None = None) -> PaperRow | None:
    """Return the published values of an objective for an encoder; without a configuration, those for BERT-base."""
    row = OBJECTIVES[objective].row
    return row(config.model_type, config.hidden_size) if config else row("bert", 768)


def filled_in(args: Any, config: PreTrainedConfig | None = None) -> dict[str, Any]:
    """Return values for the options in `args` that are None. Options whose default is None are left out.

    Args:
        args: `InforMinTrainingArguments`.
        config: Configuration of the encoder; None uses the published values for BERT-base.
    """
    objective = OBJECTIVES[args.objective]
    shared = {
        "projection_head": objective.projection_head,
        "max_seq_length": objective.max_seq_length,
        "measure_drift": args.objective == "guided",
        "save_strategy": "epoch" if args.eval_strategy == "epoch" and args.save_steps is None else "steps",
    }
    if (args.save_strategy or shared["save_strategy"]) == "steps":
        shared["save_steps"] = args.eval_steps or 125
    values = WITHOUT_PAPER | option_defaults() | shared | mixed_precision(args) | published(args, config)
    return {name: value for name, value in values.items() if value is not None and getattr(args, name) is None}


def published(args: Any, config: PreTrainedConfig | None = None) -> dict[str, Any]:
    """Return the paper's values for the options in `args` that are None and have an effect."""
    row = paper_row(args.objective, config)
    if row is None:
        return {}
    values = {name: getattr(args, name) for name in option_defaults() if getattr(args, name) is not None}
    unused = set(option_defaults()) - used_options(args.objective, row.options | values)
    batch = max(1, row.batch_size // number_of_processes())
    wanted = {"per_device_train_batch_size": batch, "learning_rate": row.learning_rate} | row.options
    return {name: v for name, v in wanted.items() if name not in unused and getattr(args, name) is None}


def used_options(objective: str, values: Mapping[str, Any]) -> set[str]:
    """Return the options of an objective's terms that have an effect: all weights, and those of terms that are on.

    Args:
        objective: Name of the objective.
        values: Options that are set; the others have the paper's values for BERT-base.
    """
    weights, used = {**OBJECTIVES[objective].defaults, **values}, set()
    for term in OBJECTIVES[objective].terms:
        is_on = term.weight is None or weights.get(term.weight)
        used |= {field.name for field in fields(term)} if is_on else {str(term.weight)}
    return used


def mixed_precision(args: Any) -> dict[str, bool]:
    """Return `bf16`: true if the hardware supports it, unless the user or the launcher chose."""
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if args.bf16 is not None or args.fp16 or launched != "no":
        return {"bf16": False}
    if args.use_cpu or torch.accelerator.current_accelerator() is None:
        supported = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    else:
        supported = is_torch_bf16_gpu_available()
    return {"bf16": supported}


def default_output_dir(model_name: str, args: Any) -> str:
    """Return outputs/MODEL-OBJECTIVE-batchN-lrX-seedN, with the batch size summed over processes."""
    rate = f"{args.learning_rate:g}".replace("e-0", "e-")
    batch = (args.per_device_train_batch_size or 1) * number_of_processes()
    return f"outputs/{last_name(model_name)}-{args.objective}-batch{batch}-lr{rate}-seed{args.seed}"


def number_of_processes() -> int:
    """Return the number of processes that the launcher started."""
    return int(os.environ.get("WORLD_SIZE", 1))


TermOptions: Any = make_dataclass(
    "TermOptions",
    option_fields(),
    repr=False,
    namespace={"__module__": __name__, "__doc__": "Options of the terms and views."},
)
