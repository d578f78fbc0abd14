"""Find the checkpoint to resume from, and check that a new run does not write into a used folder."""

import logging
import re
import shutil
from pathlib import Path
from typing import Any

from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from informin.errors import UsageError
from informin.files import damage, manifest_files, read_json
from informin.option_types import with_home
from informin.records import TRAINING, RunRecord
from informin.training.record import DEFAULTS, ONLY_IF_CHANGED

logger = logging.getLogger(__name__)

LAST = "last"  # value of `resume_from_checkpoint` for the latest complete checkpoint
RESUME = "resume_from_checkpoint"


def step_of(checkpoint: Path) -> int:
    """Return the step in a checkpoint folder's name, such as checkpoint-125."""
    return int(checkpoint.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-"))


def state_of(checkpoint: str | Path) -> dict[str, Any]:
    """Return trainer_state.json of a checkpoint."""
    return read_json(Path(checkpoint, TRAINER_STATE_NAME))


def callback_state(checkpoint: str | Path, name: str) -> dict[str, Any]:
    """Return the arguments of a callback that a checkpoint saved; empty if it saved none."""
    return (state_of(checkpoint).get("stateful_callbacks") or {}).get(name, {}).get("args", {})


def complete_checkpoints(output_dir: str | Path) -> list[Path]:
    """Return the complete checkpoints of a run, sorted by step. Compares file sizes, not checksums."""
    return [path for path in all_checkpoints(output_dir) if damage(path, contents=False) is None]


def all_checkpoints(folder: str | Path) -> list[Path]:
    """Return the checkpoint folders, complete or not, sorted by step."""
    named = [path for path in Path(folder).glob("*") if re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-\d+", path.name)]
    return sorted((path for path in named if path.is_dir()), key=step_of)


def can_resume(checkpoint: Path) -> bool:
    """Return whether a checkpoint has what a resumed run needs. With `save_only_model`, it does not."""
    return {"scheduler.pt", TRAINING} <= (manifest_files(checkpoint) or {}).keys()


def checkpoint_to_resume(output_dir: str | Path, wanted: object) -> Path:
    """Return the checkpoint folder to resume from. Logs which later checkpoints are damaged.

    Args:
        output_dir: Output folder of the run.
        wanted: Checkpoint folder; True or "last" for the latest complete one in `output_dir`.

    Raises:
        UsageError: There is no complete checkpoint; the given one is damaged, is older than another one in
            `output_dir`, or lacks the optimizer state.
    """
    if wanted is True or wanted == LAST:
        checkpoint = _latest_complete(output_dir)
    elif isinstance(wanted, str | Path) and str(wanted):
        checkpoint = _given(Path(with_home(wanted)), Path(output_dir))
    else:
        raise UsageError(f"is {wanted!r}", option=RESUME, needed=f"a checkpoint folder, or `{LAST}`")
    if not can_resume(checkpoint):
        raise UsageError(
            f"{checkpoint} lacks training.json or the optimizer state (see `save_only_model`)",
            option=RESUME,
            fix="Start a new run from its weights: `model_name` FOLDER `output_dir` ANOTHER.",
        )
    return checkpoint


def _latest_complete(output_dir: str | Path) -> Path:
    damaged: list[str] = []
    for checkpoint in reversed(all_checkpoints(output_dir)):
        problem = damage(checkpoint)
        if problem is None:
            for text in damaged:
                logger.warning(f"{text}. Resuming from {checkpoint.name} instead.")
            return checkpoint
        damaged.append(f"{checkpoint} is damaged ({problem})")
    raise UsageError(
        f"{output_dir} has no complete checkpoint{''.join(f'; {text}' for text in damaged)}",
        option=RESUME,
        fix=f"Start a new run without `{RESUME}`, or give the folder of a complete checkpoint.",
    )


def _given(checkpoint: Path, output_dir: Path) -> Path:
    problem = damage(checkpoint)
    if problem:
        raise UsageError(
            f"{checkpoint} is not a complete checkpoint: {problem}",
            option=RESUME,
            needed=f"a folder such as outputs/RUN/{PREFIX_CHECKPOINT_DIR}-125, or `{LAST}` for the latest complete one",
        )
    if checkpoint.resolve().parent != output_dir.resolve():
        raise_if_output_used(output_dir)
        return checkpoint
    others = [path for path in all_checkpoints(output_dir) if step_of(path) > step_of(checkpoint)]
    later = [path.name for path in others if damage(path) is None]
    if later:
        raise UsageError(
            f"{checkpoint} is older than {', '.join(later)} in the same folder, and two runs would get mixed up",
            option=RESUME,
            fix="Choose another `output_dir`, or delete the later checkpoints.",
        )
    return checkpoint


def raise_if_output_used(output_dir: str | Path, restarted: bool = False) -> None:
    """Raise UsageError if the output folder of a new run already has a model or a checkpoint.

    Args:
        output_dir: Output folder of the run.
        restarted: Allow incomplete checkpoints, which a run that was started again may have left.
    """
    folder = Path(output_dir)
    existing = [path for path in (folder / "model.safetensors", folder / "modules.json") if path.exists()]
    existing += complete_checkpoints(folder) if restarted else all_checkpoints(folder)
    if existing:
        raise UsageError(
            f"{folder} already contains {existing[0].name}",
            option="output_dir",
            fix=f"Resume that run (`{RESUME}`), or choose another folder.",
        )


def check_same_run(checkpoint: str | Path, now: RunRecord) -> None:
    """Raise UsageError if a run that resumes differs from the one that saved the checkpoint.

    Compares the encoder, the sentences, the seed, the number of processes and the options that affect the weights.

    Args:
        checkpoint: Folder of the checkpoint.
        now: Record of the resumed run before its first step.
    """
    began = RunRecord.load(checkpoint)
    assert began is not None  # see `checkpoint_to_resume`
    changed = []
    for name in ("weights_sha256", "settings_sha256"):
        before = (began.base_model or {}).get(name)
        after = (now.base_model or {}).get(name)
        if before and after and before != after:
            changed.append(f"the encoder (`model_name`), by its {name}")
    old = began.data or {}
    new = now.data or {}
    checked = "sha256" if old.get("sha256") and new.get("sha256") else "sources"  # a stream is not read before
    if old and new and old.get(checked) != new.get(checked):
        changed.append(f"the sentences, {old.get('sentences')} from {old.get('sources')}")
    if began.seed != now.seed:
        changed.append(f"seed {began.seed}, now {now.seed}")
    for name in dict.fromkeys([*began.options, *now.options]):
        before, after = began.options.get(name), now.options.get(name)
        if before == after:
            continue
        if name == "cpu_parts":
            changed.append(f"{before or 1} parts of a batch at a time (`OMP_NUM_THREADS`), now {after or 1}")
        else:
            usual = DEFAULTS[name] if name in ONLY_IF_CHANGED else "not set"
            changed.append(f"{name} {began.options.get(name, usual)}, now {now.options.get(name, usual)}")
    if changed:
        raise UsageError(
            f"{checkpoint} belongs to another run: {'; '.join(changed)}",
            option=RESUME,
            fix="Restore the original values, or choose another `output_dir` for a new run.",
        )


def check_order(checkpoint: str | Path, args: Any, has_size: bool) -> None:
    """Raise UsageError if the order of the sentences after a checkpoint cannot be reproduced.

    Args:
        checkpoint: Folder of the checkpoint.
        args: Arguments of the resumed run.
        has_size: Whether the length of the data is known.
    """
    loader = args.accelerator_config
    strategy = args.train_sampling_strategy
    epoch = state_of(checkpoint)["epoch"] or 0
    is_later = has_size and not args.ignore_data_skip and epoch > 1 and epoch % 1 > 0  # within the second or later
    in_any_order = not args.dataloader_in_order and args.dataloader_num_workers > 1
    # In later epochs, these draw from the global random state instead of the seed and the epoch.
    unseeded = strategy == "random" and (not loader.use_seedable_sampler or loader.dispatch_batches)
    if in_any_order or (is_later and (unseeded or strategy == "group_by_length")):
        raise UsageError(
            f"{checkpoint} cannot be resumed with the same order of sentences, because of `dataloader_in_order`, "
            "`train_sampling_strategy` or `accelerator_config`",
            option=RESUME,
        )


def delete_old_checkpoints(output_dir: Path, limit: int | None, best: str | None) -> None:
    """Delete the oldest checkpoints, so that at most `limit` remain. The best and the latest one are kept.

    Args:
        output_dir: Folder of the checkpoints.
        limit: Number of checkpoints; None or 0 keeps all.
        best: The best checkpoint; None without a complete one.
    """
    if not limit or limit < 0:
        return
    found = all_checkpoints(output_dir)
    kept = {found[-1].resolve()}
    if best:
        kept.add(Path(best).resolve())
    others = [path for path in found if path.resolve() not in kept]
    surplus = len(found) - max(limit, len(kept))
    for path in others[: max(0, surplus)]:
        logger.debug(f"Deleting {path.name}, because of `save_total_limit`")
        shutil.rmtree(path, ignore_errors=True)
