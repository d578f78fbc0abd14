"""Values of the arguments that depend on the objective and the encoder: those of the paper, and the output folder."""

import copy
import os
from typing import Any

from informin.files import last_name
from informin.objectives.presets import Encoder, Preset
from informin.training.options import InforMinTrainingArguments


def with_paper_values(
    args: InforMinTrainingArguments, preset: Preset, encoder: Encoder, model_name: str
) -> InforMinTrainingArguments:
    """Return the arguments with values for those that are None: a copy, or `args` itself if none is.

    Args:
        args: Arguments of the run.
        preset: Its objective.
        encoder: The encoder to train.
        model_name: Its name or folder.
    """
    paper = preset.paper(encoder)
    values: dict[str, Any] = {
        "per_device_train_batch_size": max(1, paper.batch_size // number_of_processes()),
        "learning_rate": paper.learning_rate,
        "warmup_steps": paper.warmup_steps,
    }
    if preset.name == "guided":
        values["measure_drift"] = True  # of a finished model
    missing = {name: value for name, value in values.items() if getattr(args, name) is None}
    if not missing and args.output_dir is not None:
        return args
    filled = copy.copy(args)
    for name, value in missing.items():
        setattr(filled, name, value)
    if filled.output_dir is None:
        filled.output_dir = default_output_dir(model_name, preset, filled)
    return filled


def default_output_dir(model_name: str, preset: Preset, args: InforMinTrainingArguments) -> str:
    """Return outputs/MODEL-OBJECTIVE-batchN-lrX-seedN, with the batch size summed over processes."""
    rate = f"{args.learning_rate:g}".replace("e-0", "e-")
    batch = (args.per_device_train_batch_size or 1) * number_of_processes()
    return f"outputs/{last_name(model_name)}-{preset.name}-batch{batch}-lr{rate}-seed{args.seed}"


def number_of_processes() -> int:
    """Return the number of processes that the launcher started."""
    return int(os.environ.get("WORLD_SIZE", 1))
