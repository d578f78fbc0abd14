"""Which checkpoint a run goes on from, and which folders a new run may not write to."""

import logging
import re
import shutil
from pathlib import Path

from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from informin.errors import UsageError
from informin.files import MANIFEST, damage, manifest_files
from informin.objectives import Term
from informin.publishing.record import RESUMED, TRAINING, load_record
from informin.schema import AMOUNT, ANY, FLAG, LOGGED, TEXT, Each, Keys, or_none, problem, read_checked, whole
from informin.training.term_fields import terms

logger = logging.getLogger(__name__)

LAST = "last"
OTHER = "Go on from another checkpoint."
_COUNT, _EVERY = whole(0), or_none(AMOUNT)
# Of trainer_state.json. Trainer refuses other keys by a TypeError.
_STATE = {
    "epoch": or_none(AMOUNT),
    "global_step": _COUNT,
    "max_steps": _COUNT,
    "logging_steps": _EVERY,
    "eval_steps": _EVERY,
    "save_steps": _EVERY,
    "train_batch_size": or_none(whole(1)),
    "num_train_epochs": (lambda value: type(value) is int and value >= 0, _COUNT[1]),  # of a stream: sys.maxsize
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
_KEPT = ("global_step", "log_history")
SETTINGS = Keys({}, {"informin": Keys(others=ANY)}, ANY)  # of config.json
STATE = Keys({name: _STATE[name] for name in _KEPT}, {name: _STATE[name] for name in _STATE if name not in _KEPT})


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint folder's name, checkpoint-125."""
    return int(checkpoint.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-"))


def steps_taken(checkpoint: str | Path) -> int:
    """The step that a checkpoint was saved at, whatever its folder is called: `last-checkpoint` on the Hub."""
    return _state(checkpoint)["global_step"]


def owes_score(checkpoint: str | Path) -> bool:
    """Whether a run left an evaluation when it saved a checkpoint."""
    callbacks = _state(checkpoint).get("stateful_callbacks") or {}
    return bool(callbacks.get("TrainerControl", {}).get("args", {}).get("should_evaluate"))


def epoch_start(checkpoint: str | Path) -> dict[str, int]:
    """`epoch` and `step` of `informin.training.callbacks.EpochStart`, of a run on a stream.

    Raises UsageError: the checkpoint is from before they were recorded, and past the first epoch.
    """
    state = _state(checkpoint)
    stored = (state.get("stateful_callbacks") or {}).get("EpochStart")
    if stored is None and state["epoch"] > 1:
        raise UsageError(
            f"`resume_from_checkpoint`: {checkpoint} is from a version that did not record where in the stream a run "
            "was, and is past the first epoch. Start a new run from its weights: `model_name` FOLDER `output_dir` "
            "ANOTHER."
        )
    return stored["args"] if stored else {"epoch": 0, "step": 0}


def _state(checkpoint: str | Path) -> dict:
    """The Trainer's state, as it reads it again. Raises UsageError where it is something else."""
    return read_checked(Path(checkpoint, TRAINER_STATE_NAME), STATE, OTHER)


def complete_checkpoints(output_dir: str | Path) -> list[Path]:
    """The checkpoints of a run that were written to the end, by step; their contents are not read."""
    return [path for path in _checkpoints(output_dir) if damage(path, contents=False) is None]


def checkpoint_to_resume(output_dir: str | Path, wanted: str, settings: dict) -> Path:
    """The checkpoint folder named, or with "last" the newest whole one of the run; others that are newer are named.

    Args:
        settings: `model_settings` of the options as they are now.

    Raises:
        UsageError: there is none, the one named is damaged, older than another in `output_dir`, or has other heads or
            no state of the optimizer.
    """
    checkpoint = _newest_whole(output_dir) if wanted == LAST else _named(Path(wanted), Path(output_dir))
    if not {"scheduler.pt", "training.json"} <= manifest_files(checkpoint).keys():
        raise UsageError(
            f"`resume_from_checkpoint`: {checkpoint} lacks training.json, or the state of the optimizer (as with "
            "`save_only_model`). Start a new run from its weights: `model_name` FOLDER `output_dir` ANOTHER."
        )
    began = read_checked(checkpoint / "config.json", SETTINGS, OTHER)
    record = load_record(checkpoint)
    found = problem(record, RESUMED)
    if not found and record["steps"] != (steps := steps_taken(checkpoint)):
        found = f"steps is {record['steps']}, and global_step in {TRAINER_STATE_NAME} is {steps}"
    if found:
        raise UsageError(f"{checkpoint / TRAINING}: {found}. {OTHER}")
    refuse_other_heads(checkpoint, began.get("informin", {}) | record["options"], settings)
    return checkpoint


def refuse_other_heads(checkpoint: Path, began: dict, now: dict) -> None:
    """Raises UsageError where a run would have other heads than its checkpoint, by the settings of both."""
    began, now = dict(began), dict(now)
    lm_heads = " and ".join(f"`{term.weight}`" for term in terms() if term.lm_head)
    deciding = {"projection_head": "`projection_head` says so", "lm_head": f"{lm_heads} says so"}
    for term in terms():
        if term.head is not Term.head and term.weight and not term.fixed:
            deciding[f"the head of {term.name}"] = f"`{term.weight}` says so"
            for settings in (began, now):
                settings[f"the head of {term.name}"] = bool(settings.get(term.weight))
        weight = f", or a `{term.weight}` of 0," * (term.weight not in (None, *term.fixed))
        deciding |= {name: f"`{name}`{weight} says so" for name in term.fixed}
    for name, said in deciding.items():
        before, after = began.get(name, 0), now.get(name, 0)
        if before != after:
            raise UsageError(
                f"`resume_from_checkpoint`: {checkpoint} was trained with {name} {before}, and now it is {after} "
                f"({said}). The heads of a run stay what they were; start a new run from its exported model to have "
                "others."
            )


def _newest_whole(output_dir: str | Path) -> Path:
    """Says which newer ones are damaged."""
    damaged = []
    for checkpoint in reversed(_checkpoints(output_dir)):
        problem = damage(checkpoint)
        if problem is None:
            for text in damaged:
                logger.warning(f"{text}: going on from {checkpoint.name}.")
            return checkpoint
        damaged.append(f"{checkpoint} is damaged ({problem})")
    found = f" {'; '.join(damaged)}." if damaged else ""
    raise UsageError(f"`resume_from_checkpoint`: {output_dir} holds no complete checkpoint to go on from.{found}")


def _named(checkpoint: Path, output_dir: Path) -> Path:
    problem = damage(checkpoint)
    if problem:
        raise UsageError(
            f"`resume_from_checkpoint`: {checkpoint} is no complete checkpoint: {problem}. Name a folder like "
            f"outputs/RUN/{PREFIX_CHECKPOINT_DIR}-125, or `{LAST}` for the newest whole one."
        )
    if checkpoint.resolve().parent != output_dir.resolve():
        refuse_used_folder(output_dir)
        return checkpoint
    later = [path.name for path in _later(output_dir, checkpoint) if damage(path) is None]
    if later:
        raise UsageError(
            f"`resume_from_checkpoint`: {output_dir} holds {', '.join(later)} too, later than {checkpoint.name}, and "
            "the two runs would mix. Give another `output_dir`, or delete what is later."
        )
    return checkpoint


def set_aside_damaged(output_dir: str | Path, checkpoint: str | Path) -> None:
    """Deletes half-written checkpoints later than the one that a run goes on from, and renames once whole ones."""
    for path in _later(output_dir, Path(checkpoint)):
        target = path.with_name(f"damaged-{path.name}")
        shutil.rmtree(target, ignore_errors=True)
        path.rename(target)
        if not (target / MANIFEST).exists() and not target.is_symlink():
            shutil.rmtree(target)


def read_history(output_dir: str | Path) -> list[dict]:
    """The log of a run, `log_history` of its newest complete checkpoint.

    Raises UsageError: the folder holds no complete checkpoint.
    """
    for checkpoint in reversed(_checkpoints(output_dir)):
        try:
            return _state(checkpoint)["log_history"]
        except UsageError:  # absent, cut off, or something else
            continue
    raise UsageError(
        f"{output_dir} holds no complete checkpoint to read the log from. Name the `output_dir` of a run that has "
        "saved one."
    )


def refuse_used_folder(output_dir: str | Path, checkpoints: bool = True) -> None:
    """Raises UsageError where the folder of a new run holds a model already, or with `checkpoints` one of these."""
    folder = Path(output_dir)
    if folder.is_file():
        raise UsageError(f"`output_dir`: {folder} is a file; needed a folder.")
    held = [path for path in (folder / "model.safetensors", folder / "config.json") if path.exists()]
    held += _checkpoints(folder) if checkpoints else []
    if held:
        raise UsageError(
            f"{folder} already holds {held[0].name}. Go on with that run (`resume_from_checkpoint`), or choose "
            "another folder (`output_dir`)."
        )


def _later(output_dir: str | Path, checkpoint: Path) -> list[Path]:
    """The checkpoints of a run after one of them, whole or not."""
    others = [path for path in _checkpoints(output_dir) if path.resolve() != checkpoint.resolve()]
    return [path for path in others if step_of(path) > steps_taken(checkpoint)]


def _checkpoints(folder: str | Path) -> list[Path]:
    """By step, whole or not."""
    named = [path for path in Path(folder).glob("*") if re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-\d+", path.name)]
    return sorted((path for path in named if path.is_dir()), key=step_of)
