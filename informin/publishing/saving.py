"""The facts about a run, its checkpoints, and the export of its model."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import nn
from transformers.trainer import TRAINING_ARGS_NAME

from informin.errors import SaveError, error_line
from informin.files import set_usual_modes
from informin.models.checksums import forget_truncation
from informin.outputs import is_write_error
from informin.publishing.export import write_exported
from informin.publishing.origin import license_of
from informin.records import RunRecord
from informin.training.lora import merged
from informin.training.model import TrainedModel
from informin.training.modules import save_wrapper
from informin.training.record import describe_sentences, training_record
from informin.training.sentences import Sentences


def run_facts(trained: TrainedModel, sentences: Sentences | None, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about a run with those of its source model and its sentences.

    Args:
        trained: The model in training.
        sentences: The training sentences; None for tokenized rows.
        provenance: See `provenance`.
    """
    facts = dict(provenance)
    hub_id = facts.pop("hub_id", None)
    base = trained.record_entry()
    facts["base_model"] = base | {"hub_id": hub_id or base["hub_id"]} if base else None
    if sentences is not None:
        facts["data"] = describe_sentences(sentences) | (facts.get("data") or {})
    if "license" not in facts:
        facts |= license_of(trained.source)
    return facts


def write_model(
    trainer: Any, folder: str, state: dict[str, Any] | None = None, module: nn.Module | None = None
) -> None:
    """Write the model, its tokenizer and training.json to the folder of a checkpoint.

    Args:
        trainer: The trainer.
        folder: Folder to write.
        state: Whole weights by name, if they are sharded.
        module: Module with these weights, if FSDP shards them.
    """
    forget_truncation(trainer.trained.tokenizer)
    if trainer.trained.is_native:
        trainer._save(folder, state)
    else:
        save_wrapper(trainer.trained, folder, module)
    # A pickle of the options, which contains local paths and is not used.
    Path(folder, TRAINING_ARGS_NAME).unlink(missing_ok=True)
    training_record(trainer).save(folder)
    set_usual_modes(Path(folder))  # transformers copies the modeling file with its mode


def export_model(trainer: Any, folder: str | Path | None = None) -> None:
    """Export the model, by default to the output folder. Call it in every process.

    Raises:
        SaveError: The folder could not be written. Earlier files in it are unchanged.
    """
    folder = folder or str(trainer.args.output_dir)
    whole = trainer.whole_model
    if not trainer.is_world_process_zero():
        return
    try:
        merge = trainer.args.lora_merge
        export_folder(trainer.trained, folder, training_record(trainer), module=whole, merge=merge)
    except Exception as error:
        if not is_write_error(error):
            raise
        raise SaveError(f"The model could not be written to {folder}: {error_line(error)}") from error


def export_folder(
    trained: TrainedModel,
    folder: str | Path,
    record: RunRecord | None = None,
    module: nn.Module | None = None,
    merge: bool = True,
) -> None:
    """Write a model in training so that it can be loaded and published. `trained` is not changed.

    Args:
        trained: The model in training.
        folder: Folder to write. Files in it are replaced once all of them are written.
        record: Record of the run.
        module: Module with whole weights, if they are sharded.
        merge: Merge low-rank matrices into the weights. False writes them alone, for the source model.

    Raises:
        UsageError: A weight is NaN or infinite, or a file in the folder is a link.
    """
    head = getattr(module or trained.module, "mlp", None)
    model = trained.finished(module)
    with merged(model) if merge and trained.has_lora else nullcontext():
        write_exported(model, Path(folder), record, "float32", None if head is None else head.state_dict())
