"""The error to raise when a checkpoint could not be written."""

import errno
import shutil
from pathlib import Path

from torch import Tensor, nn
from torch.optim import Optimizer

from informin.errors import NO_SPACE, SaveError, error_line, is_write_error
from informin.files import manifest_files
from informin.training.checkpoints import LAST, complete_checkpoints, resumable_checkpoints

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def save_error(folder: Path, error: Exception, model: nn.Module, optimizer: Optimizer | None) -> Exception:
    """Delete an incomplete checkpoint and return the error to raise: `error` itself if it was not about writing files.

    Args:
        folder: Folder of the checkpoint.
        error: Exception raised while saving.
        model: Model whose size estimates the required space if there is no earlier checkpoint.
        optimizer: Its optimizer.
    """
    complete = complete_checkpoints(folder.parent)
    files = (manifest_files(complete[-1]) or {}).values() if complete else ()
    states = [value for state in (optimizer.state.values() if optimizer else ()) for value in state.values()]
    tensors = [*model.state_dict().values(), *(value for value in states if isinstance(value, Tensor))]
    needed = sum(entry["size"] for entry in files) or sum(x.numel() * x.element_size() for x in tensors)
    free = shutil.disk_usage(folder.parent).free
    full = getattr(error, "errno", None) in DISK_FULL or NO_SPACE in str(error) or free < needed
    if not full and not is_write_error(error):
        return error
    shutil.rmtree(folder, ignore_errors=True)
    free = shutil.disk_usage(folder.parent).free
    reason = error_line(error)
    if full:
        reason = (
            f"the disk is full. The checkpoint needs {mebibytes(needed)}, and {folder.parent} has {mebibytes(free)}"
        )
    fix = "There is no earlier checkpoint to resume from."
    if resumable_checkpoints(folder.parent):
        fix = f"Free some space, then run the same command with `resume_from_checkpoint` {LAST} to resume from "
        fix += f"{complete[-1]}."
    return SaveError(f"{folder.name} could not be saved: {reason}. The incomplete checkpoint was deleted. {fix}")


def mebibytes(size: int) -> str:
    """Return a size in bytes as text, in MiB."""
    return f"{size / 2**20:,.2f} MiB"
