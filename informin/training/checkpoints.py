"""Find the checkpoint to resume from, and check that a new run does not write into a used folder."""

import logging
import re
import shutil
from pathlib import Path
from typing import Any

from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from informin.errors import UsageError
from informin.files import MANIFEST, damage, manifest_files
from informin.objectives import Term
from informin.publishing.record import RESUMED, TRAINING, load_record
from informin.schema import AMOUNT, ANY, FLAG, LOGGED, TEXT, Each, Keys, integer, or_none, problem, read_checked
from informin.training.term_fields import terms

logger = logging.getLogger(__name__)

LAST = "last"  # value of `resume_from_checkpoint` for the latest complete checkpoint
RESUME = "resume_from_checkpoint"
OTHER = "Resume from another checkpoint."
_COUNT, _INTERVAL = integer(0), or_none(AMOUNT)
# Schema of trainer_state.json. Other keys would make Trainer raise a TypeError.
_STATE: dict[str, Any] = {
    "epoch": or_none(AMOUNT),
    "global_step": _COUNT,
    "max_steps": _COUNT,
    "logging_steps": _INTERVAL,
    "eval_steps": _INTERVAL,
    "save_steps": _INTERVAL,
    "train_batch_size": or_none(integer(1)),
    "num_train_epochs": (lambda value: type(value) is int and value >= 0, _COUNT[1]),  # sys.maxsize for a stream
    "num_input_tokens_seen": AMOUNT,
    "total_flos": AMOUNT,
    "log_history": Each(Keys({"step": _COUNT}, others=LOGGED)),
    "best_metric": or_none(LOGGED),
    "best_global_step": or_none(_COUNT),
    "best_model_checkpoint": or_none(TEXT),
    **dict.fromkeys(("is_local_process_zero", "is_world_process_zero", "is_hyper_param_search"), FLAG),
    "trial_name": or_none(TEXT),
    "trial_params": ANY,
    "stateful_callbacks": Keys(
        {"TrainerControl": Keys({"args": Keys(others=FLAG), "attributes": Keys(others=ANY)})}, others=ANY, null=True
    ),
}
_REQUIRED = ("global_step", "log_history")
SETTINGS = Keys({}, {"informin": Keys(others=ANY)}, ANY)  # schema of config.json
STATE = Keys(
    {name: _STATE[name] for name in _REQUIRED}, {name: _STATE[name] for name in _STATE if name not in _REQUIRED}
)


def step_of(checkpoint: Path) -> int:
    """Return the step in a checkpoint folder's name, such as checkpoint-125."""
    return int(checkpoint.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-"))


def steps_taken(checkpoint: str | Path) -> int:
    """Return the step at which a checkpoint was saved. Its folder may have another name, such as `last-checkpoint`."""
    return _state(checkpoint)["global_step"]


def lacks_score(checkpoint: str | Path) -> bool:
    """Return whether a signal interrupted the evaluation at this checkpoint, so that its score is missing."""
    callbacks = _state(checkpoint).get("stateful_callbacks") or {}
    return bool(callbacks.get("TrainerControl", {}).get("args", {}).get("should_evaluate"))


def epoch_start(checkpoint: str | Path) -> dict[str, int]:
    """Return the attributes `epoch` and `step` of `informin.training.callbacks.EpochStart` in a checkpoint.

    Raises:
        UsageError: The checkpoint was saved after the first epoch by a version that did not record them.
    """
    state = _state(checkpoint)
    stored = (state.get("stateful_callbacks") or {}).get("EpochStart")
    if stored is None and state["epoch"] > 1:
        raise UsageError(
            f"{checkpoint} was saved after the first epoch by a version that did not record the position in the stream",
            option=RESUME,
            fix="Start a new run from its weights: `model_name` FOLDER `output_dir` ANOTHER.",
        )
    return stored["args"] if stored else {"epoch": 0, "step": 0}


def _state(checkpoint: str | Path) -> dict:
    """Return the content of trainer_state.json. Raise UsageError if it is not valid."""
    return read_checked(Path(checkpoint, TRAINER_STATE_NAME), STATE, OTHER)


def complete_checkpoints(output_dir: str | Path) -> list[Path]:
    """Return the complete checkpoints of a run, sorted by step. Compares file sizes, not checksums."""
    return [path for path in _checkpoints(output_dir) if damage(path, contents=False) is None]


def resumable_checkpoints(output_dir: str | Path) -> list[Path]:
    """Return the complete checkpoints that a run can resume from. With `save_only_model`, there are none."""
    return [path for path in complete_checkpoints(output_dir) if _can_resume(path)]


def _can_resume(checkpoint: Path) -> bool:
    return {"scheduler.pt", TRAINING} <= (manifest_files(checkpoint) or {}).keys()


def checkpoint_to_resume(output_dir: str | Path, wanted: str, settings: dict) -> Path:
    """Return the checkpoint folder to resume from. Logs which later checkpoints are damaged.

    Args:
        output_dir: Output folder of the run.
        wanted: Checkpoint folder, or "last" for the latest complete one in `output_dir`.
        settings: `model_settings` of the resumed run's arguments.

    Raises:
        UsageError: There is no complete checkpoint; the given one is damaged, is older than another one in
            `output_dir`, lacks the optimizer state, or has other heads than the resumed run.
    """
    checkpoint = _latest_complete(output_dir) if wanted == LAST else _given(Path(wanted), Path(output_dir))
    if not _can_resume(checkpoint):
        raise UsageError(
            f"{checkpoint} lacks training.json or the optimizer state (see `save_only_model`)",
            option=RESUME,
            fix="Start a new run from its weights: `model_name` FOLDER `output_dir` ANOTHER.",
        )
    record = load_record(checkpoint) or {}
    config = checkpoint / "config.json"  # that of a SentenceTransformer has no settings of this project
    began = read_checked(config, SETTINGS, OTHER) if config.is_file() else {}
    found = problem(record, RESUMED)
    if not found and record["steps"] != (steps := steps_taken(checkpoint)):
        found = f"steps is {record['steps']}, but global_step in {TRAINER_STATE_NAME} is {steps}"
    if found:
        raise UsageError(f"{checkpoint / TRAINING}: {found}", fix=OTHER)
    refuse_changed_heads(checkpoint, began.get("informin", {}) | record["options"], settings)
    return checkpoint


def refuse_changed_heads(checkpoint: Path, began: dict, now: dict) -> None:
    """Raise UsageError if a resumed run would have other heads than its checkpoint.

    Args:
        checkpoint: Folder of the checkpoint.
        began: Settings of the checkpoint.
        now: Settings of the resumed run.
    """
    began, now = dict(began), dict(now)
    # For each setting, the options that determine it.
    options = {"projection_head": "`projection_head`"}
    options["lm_head"] = " and ".join(f"`{term.weight}`" for term in terms() if term.lm_head)
    for term in terms():
        if term.head is not Term.head and term.weight and not term.fixed:
            options[f"the head of {term.name}"] = f"`{term.weight}`"
            for settings in (began, now):
                settings[f"the head of {term.name}"] = bool(settings.get(term.weight))
        weight = f", or by setting `{term.weight}` to 0" if term.weight not in (None, *term.fixed) else ""
        options |= {name: f"`{name}`{weight}" for name in term.fixed}
    for name, determining in options.items():
        before, after = began.get(name, 0), now.get(name, 0)
        if before != after:
            raise UsageError(
                f"{checkpoint} was trained with {name} {before}, and now it is {after} (set by {determining})",
                option=RESUME,
                fix="Heads cannot change within a run. To use other heads, start a new run from the exported model.",
            )


def _latest_complete(output_dir: str | Path) -> Path:
    damaged: list[str] = []
    for checkpoint in reversed(_checkpoints(output_dir)):
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
        refuse_used_folder(output_dir)
        return checkpoint
    later = [path.name for path in _later(output_dir, checkpoint) if damage(path) is None]
    if later:
        raise UsageError(
            f"{checkpoint} is older than {', '.join(later)} in the same folder, and two runs would get mixed up",
            option=RESUME,
            fix="Choose another `output_dir`, or delete the later checkpoints.",
        )
    return checkpoint


def set_aside_damaged(output_dir: str | Path, checkpoint: str | Path) -> None:
    """Remove damaged checkpoints that are later than the one to resume from.

    Incomplete checkpoints are deleted. Complete ones whose files changed are renamed to damaged-checkpoint-N.
    """
    for path in _later(output_dir, Path(checkpoint)):
        target = path.with_name(f"damaged-{path.name}")
        shutil.rmtree(target, ignore_errors=True)
        path.rename(target)
        if not (target / MANIFEST).exists() and not target.is_symlink():
            shutil.rmtree(target)


def read_history(output_dir: str | Path) -> list[dict]:
    """Return the log of a run: `log_history` of its latest checkpoint with a valid trainer_state.json.

    Raises:
        UsageError: The folder has no such checkpoint.
    """
    for checkpoint in reversed(_checkpoints(output_dir)):
        try:
            return _state(checkpoint)["log_history"]
        except UsageError:
            continue
    raise UsageError(
        f"{output_dir} has no complete checkpoint to read the log from",
        fix="Give the `output_dir` of a run that has saved a checkpoint.",
    )


def refuse_used_folder(output_dir: str | Path, checkpoints: bool = True) -> None:
    """Raise UsageError if the output folder of a new run already has a model or, with `checkpoints`, a checkpoint."""
    folder = Path(output_dir)
    if folder.is_file():
        raise UsageError(f"{folder} is a file", option="output_dir", needed="a folder")
    existing = [path for path in (folder / "model.safetensors", folder / "config.json") if path.exists()]
    existing += _checkpoints(folder) if checkpoints else []
    if existing:
        raise UsageError(
            f"{folder} already contains {existing[0].name}",
            option="output_dir",
            fix=f"Resume that run (`{RESUME}`), or choose another folder.",
        )


def refuse_complete_checkpoints(output_dir: str | Path) -> None:
    """Raise UsageError if the output folder of a new run has complete checkpoints, which it would take for its own."""
    if existing := complete_checkpoints(output_dir):
        raise UsageError(
            f"{output_dir} already contains {existing[0].name} of an earlier run",
            option="output_dir",
            fix=f"Resume that run (`{RESUME}`), delete its checkpoints, or choose another folder.",
        )


def _later(output_dir: str | Path, checkpoint: Path) -> list[Path]:
    """Return the checkpoints of a run after the given one, complete or not."""
    others = [path for path in _checkpoints(output_dir) if path.resolve() != checkpoint.resolve()]
    return [path for path in others if step_of(path) > steps_taken(checkpoint)]


def _checkpoints(folder: str | Path) -> list[Path]:
    """Return the checkpoint folders, complete or not, sorted by step."""
    named = [path for path in Path(folder).glob("*") if re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-\d+", path.name)]
    return sorted((path for path in named if path.is_dir()), key=step_of)
