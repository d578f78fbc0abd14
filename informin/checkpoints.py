"""Which checkpoint a run goes on from, and which folders a new run may not write to."""

import json
import re
from pathlib import Path

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from informin.errors import UsageError
from modeling_informin import HEADS

LAST = "last"


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint folder's name, checkpoint-125."""
    return int(checkpoint.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-"))


def steps_taken(checkpoint: str | Path) -> int:
    """The step that a checkpoint was saved at, whatever its folder is called: `last-checkpoint` on the Hub."""
    return json.loads(Path(checkpoint, "trainer_state.json").read_text(encoding="utf-8"))["global_step"]


def complete_checkpoints(output_dir: str | Path) -> list[Path]:
    """The checkpoints of a run that were written to the end, by step. The Trainer writes trainer_state.json last."""
    return sorted((path for path in _checkpoints(output_dir) if _is_complete(path)), key=step_of)


def checkpoint_to_resume(output_dir: str | Path, wanted: str, settings: dict) -> Path:
    """The checkpoint folder named, or with "last" the newest complete one of the run.

    Args:
        settings: `config.informin` as the options are now.

    Raises:
        UsageError: there is none, the one named is not a complete checkpoint, or it has other heads.
    """
    complete = complete_checkpoints(output_dir) if wanted == LAST else [Path(wanted)]
    if not complete:
        raise UsageError(f"--resume_from_checkpoint: {output_dir} holds no complete checkpoint to go on from.")
    checkpoint = complete[-1]
    if not _is_complete(checkpoint):
        raise UsageError(
            f"--resume_from_checkpoint: {wanted} is no complete checkpoint (it needs a readable trainer_state.json). "
            f"Name a folder like outputs/RUN/{PREFIX_CHECKPOINT_DIR}-125, or `{LAST}` for the newest."
        )
    config = checkpoint / "config.json"
    began = json.loads(config.read_text(encoding="utf-8")).get("informin", {}) if config.is_file() else {}
    for name in HEADS:
        if name in settings and began.get(name, settings[name]) != settings[name]:
            raise UsageError(
                f"--resume_from_checkpoint: {checkpoint} was trained with {name} {began[name]}, and now it is "
                f"{settings[name]}. Go on with the options that the run began with."
            )
    return checkpoint


def read_history(output_dir: str | Path) -> list[dict]:
    """The log of a run, `log_history` of its newest complete checkpoint.

    Raises:
        UsageError: the folder holds no complete checkpoint.
    """
    checkpoints = complete_checkpoints(output_dir)
    if not checkpoints:
        raise UsageError(
            f"{output_dir} holds no complete checkpoint to read the log from. Name the --output_dir of a run that has "
            "saved one."
        )
    return json.loads((checkpoints[-1] / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]


def refuse_used_folder(output_dir: str | Path) -> None:
    """Keeps a new run from writing over an older one.

    Raises:
        UsageError: the folder already holds a model or a checkpoint.
    """
    folder = Path(output_dir)
    if folder.is_file():
        raise UsageError(f"--output_dir: {folder} is a file; needed a folder.")
    held = [path for path in (folder / "model.safetensors", folder / "config.json") if path.exists()]
    held += _checkpoints(folder)
    if held:
        raise UsageError(
            f"{folder} already holds {held[0].name}. Go on with that run (--resume_from_checkpoint), or choose "
            "another folder (--output_dir)."
        )


def _checkpoints(folder: str | Path) -> list[Path]:
    return [p for p in Path(folder).glob("*") if re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-\d+", p.name)]


def _is_complete(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / "trainer_state.json").read_text())
    except (OSError, ValueError):  # absent, cut off, or not text
        return False
    return True
