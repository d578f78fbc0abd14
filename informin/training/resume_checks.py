"""Check that a run can resume from a checkpoint: same encoder, options, sentences and evaluation data."""

import logging
from pathlib import Path
from typing import Any

from informin.errors import UsageError, counted
from informin.publishing.record import load_record
from informin.training.checkpoints import steps_taken
from informin.training.fingerprints import changed_inputs
from informin.training.options import InforMinTrainingArguments

logger = logging.getLogger(__name__)

# Entries of the record that are kept for each earlier part of a run.
PART = "objective seed options data inputs development history environment".split()
NOT_LAMBDAS = ("reduce_lr_on_plateau", "greedy")  # schedulers whose state differs from that of LambdaLR
RESUME = "resume_from_checkpoint"


def loaded_record(checkpoint: str | Path) -> dict:
    """Return the record of a checkpoint that `checkpoint_to_resume` has checked."""
    record = load_record(checkpoint)
    assert record is not None
    return record


def resumed_provenance(checkpoint: str | Path, known: dict, settings: dict, allowed: bool) -> dict:
    """Return `known` with the earlier parts of the run that resumes from a checkpoint.

    A run has several parts if it was resumed after something that affects the weights had changed.

    Args:
        known: Of the resumed run, from `informin.training.record.provenance`.
        settings: Of the resumed run, from `informin.training.record.weights_settings`.
        allowed: Whether changes are allowed (`resume_with_changes`).

    Raises:
        UsageError: The run began with another encoder, something else changed and `allowed` is False, or the run is
            already past its last step.
    """
    began, reached = loaded_record(checkpoint), steps_taken(checkpoint)
    refuse_finished_run(reached, settings["options"].get("max_steps", reached), checkpoint)
    new, old = known.get("base_model"), began["base_model"]
    if new and old and new["weights_sha256"] != old["weights_sha256"]:
        raise UsageError(
            f"{checkpoint} began with the encoder {old['name']}, and the weights of {new['name']} differ from it",
            option=RESUME,
            fix="Use the encoder that the run began with, or choose another `output_dir` for a new run.",
        )
    for name in ("optim", "lr_scheduler_type"):
        before, now = began["options"].get(name), settings["options"].get(name)
        if before != now and (name == "optim" or {before, now} & set(NOT_LAMBDAS)):
            raise UsageError(
                f"{checkpoint} has the state of `{name}` {before}, which {now} cannot load",
                option=RESUME,
                fix=f"Set `{name}` to {before}, or start a new run from the exported model.",
            )
    if "inputs" not in began:
        logger.info(
            f"{checkpoint} was saved by a version that recorded no fingerprints. Changes to streamed files, the guide "
            "and `replay_file` cannot be detected."
        )
    changed = differences(began, known | settings)
    if changed and not allowed:
        raise UsageError(
            f"{checkpoint} belongs to another run: {'; '.join(changed)}",
            option=RESUME,
            fix="Restore the original values, choose another `output_dir` for a new run, or set `resume_with_changes` "
            "to accept the changes.",
        )
    earlier = began["earlier"]
    if changed:
        logger.info(f"Changed after {counted(reached, 'step')}: {'; '.join(changed)}.")
        earlier = [*earlier, {"until_step": reached, **{name: began[name] for name in PART if name in began}}]
    return known | {"earlier": earlier}


def refuse_finished_run(reached: int, planned: int, checkpoint: str | Path) -> None:
    """Raise UsageError if a run is already past its last step."""
    if planned < reached:
        raise UsageError(
            f"{checkpoint} is already past the end of training: {counted(reached, 'step')} are done, and {planned} are "
            "planned",
            option=RESUME,
            fix="Increase `max_steps` or `num_train_epochs`, or export the checkpoint: "
            f"python -m informin export {checkpoint} NEW_FOLDER",
        )


def refuse_unknown_order(checkpoint: str | Path, args: InforMinTrainingArguments, later: bool) -> None:
    """Raise UsageError if the order of the sentences after a checkpoint cannot be reproduced.

    Args:
        checkpoint: Folder of the checkpoint.
        args: Arguments of the resumed run.
        later: Whether the checkpoint lies within the second or a later epoch of data with a known length.
    """
    loader: Any = args.accelerator_config
    strategy = args.train_sampling_strategy
    random = later and strategy == "random"  # drawn from the global random state instead of seed and epoch
    unknown = {
        "`dataloader_in_order` false": not args.dataloader_in_order and args.dataloader_num_workers > 1,
        "`train_sampling_strategy` group_by_length": later and strategy == "group_by_length",
        "`accelerator_config` with `use_seedable_sampler` false": random and not loader.use_seedable_sampler,
        "`accelerator_config` with `dispatch_batches` true": random and loader.dispatch_batches,
    }
    options = [option for option, found in unknown.items() if found]
    if options:
        another = ", or resume from a checkpoint of the first epoch or at the end of an epoch" if later else ""
        raise UsageError(
            f"{checkpoint} cannot be resumed with the same order of sentences, because of {options[0]}",
            option=RESUME,
            fix=f"Set `resume_with_changes` to resume with another order{another}.",
        )


def differences(began: dict, now: dict) -> list[str]:
    """Return descriptions of what changed among everything that affects the weights or the choice of a checkpoint."""
    changed = []

    def compare(name: str, old: object, new: object) -> None:
        if old != new:
            changed.append(f"{name} {_shown(old)}, now {_shown(new)}")

    compare("seed", began["seed"], now["seed"])
    for name in dict.fromkeys([*began["options"], *now["options"]]):
        shown = "cpu_parts (from OMP_NUM_THREADS)" if name == "cpu_parts" else name
        compare(shown, began["options"].get(name), now["options"].get(name))
    new, old = now.get("data"), began["data"]
    if new and old:
        if new["sha256"] and old["sha256"]:
            if new["sha256"] != old["sha256"]:
                changed.append(f"sentences {_sentences(old)}, now {_sentences(new)}")
        else:  # a stream is not read before training
            compare("sentences", old["sources"], new["sources"])
    new, old = now.get("base_model"), began["base_model"]
    if new and old and new["settings_sha256"] != old["settings_sha256"]:
        changed.append(f"configuration or tokenizer of {old['name']} (SHA-256 {old['settings_sha256'][:8]})")
    if "inputs" in began and "inputs" in now:
        changed += changed_inputs(began["inputs"], now["inputs"])
    if began["development_sha256"] != now["development_sha256"]:
        changed.append(f"evaluation data {_shown(began['development'])}, now {_shown(now['development'])}")
    return changed


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return "none" if value is None else " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _sentences(data: dict) -> str:
    return f"{data['sentences'] or 0:,} from {', '.join(data['sources'])} (SHA-256 {data['sha256'][:8]})"
