"""Save a checkpoint: Trainer writes most of it, and a background thread finishes it while training continues.

A checkpoint is complete once it has its manifest. Only then are older checkpoints deleted.
"""

import copy
import shutil
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from accelerate.utils import recursively_apply
from transformers import TrainerCallback
from transformers.integrations.integration_utils import MLflowCallback, TrackioCallback, WandbCallback, WandbLogModel
from transformers.trainer import OPTIMIZER_NAME

from informin.errors import SaveError, error_line
from informin.files import write_manifest
from informin.outputs import is_write_error
from informin.training.callbacks import Throughput
from informin.training.checkpoints import LAST, delete_old_checkpoints
from informin.training.signals import StopOnSignal

# Whether `on_save` of a callback reads the new checkpoint, for those that do not always do.
READS: dict[Any, Callable[[Any], bool]] = {
    TrainerCallback.on_save: lambda callback: False,
    Throughput.on_save: lambda callback: False,
    StopOnSignal.on_save: lambda callback: False,
    TrackioCallback.on_save: lambda callback: False,
    WandbCallback.on_save: lambda callback: callback._log_model == WandbLogModel.CHECKPOINT,
    MLflowCallback.on_save: lambda callback: callback._log_artifacts,
}


class Background:
    """Does work in a background thread, one piece at a time. Python does not exit before its end."""

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._error: Exception | None = None

    def start(self, work: Callable[[], object]) -> None:
        """Start the work. First wait for the end of the work before it."""
        self.wait()
        self._thread = Thread(target=self._run, args=(work,), name="checkpoint", daemon=False)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the end of the work, and raise the error that ended it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error = self._error
        self._error = None
        if error:
            raise error

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            self._error = error


@contextmanager
def unfinished_checkpoint(trainer: Any, folder: Path) -> Iterator[None]:
    """Return a context in which Trainer writes a checkpoint, which `finish_checkpoint` then completes.

    Trainer's own push and its deletion of older checkpoints are off within: both must wait for the manifest.

    Raises:
        SaveError: The checkpoint could not be written; its incomplete files are deleted.
    """
    args = trainer.args
    trainer.args = copy.copy(args)
    trainer.args.push_to_hub = False
    trainer.args.save_total_limit = None
    if args.should_save:
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one that the run did not resume from
    trainer.accelerator.wait_for_everyone()
    try:
        with _deleted_after(folder):
            yield
        trainer.accelerator.wait_for_everyone()  # each process writes its random state
    finally:
        trainer.args = args


def finish_checkpoint(folder: Path, optimizer: dict[str, Any] | None, limit: int | None, best: str | None) -> None:
    """Write the optimizer state and the manifest of a checkpoint, and then delete older checkpoints.

    Args:
        folder: Folder of the checkpoint.
        optimizer: State of the optimizer; None if Trainer has written it, or if it is not saved.
        limit: See `delete_old_checkpoints`.
        best: See `delete_old_checkpoints`.

    Raises:
        SaveError: The checkpoint could not be written; its incomplete files are deleted, and older ones are kept.
    """
    with _deleted_after(folder):
        if optimizer is not None:
            torch.save(optimizer, folder / OPTIMIZER_NAME)
        write_manifest(folder)
    delete_old_checkpoints(folder.parent, limit, best)


@contextmanager
def _deleted_after(folder: Path) -> Iterator[None]:
    """Delete an incomplete checkpoint if a file of it cannot be written, and raise SaveError."""
    try:
        yield
    except Exception as error:
        if not is_write_error(error) and not is_of_torch_save(error):
            raise
        shutil.rmtree(folder, ignore_errors=True)
        raise SaveError(
            f"{folder.name} could not be saved: {error_line(error)}. Its incomplete files were deleted. Free some "
            f"space, then resume from the checkpoint before it (`resume_from_checkpoint` {LAST})."
        ) from error


def is_of_torch_save(error: Exception) -> bool:
    """Return whether torch.save raised an error, as it does if the disk is full. Its messages vary."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals["__name__"] == torch.serialization.__name__


def copy_on_cpu(state: Any) -> Any:
    """Return a copy of nested dictionaries and lists whose tensors are copied to the CPU."""
    return recursively_apply(torch.Tensor.to, state, "cpu", copy=True)


def reads_checkpoints(callbacks: Iterable[TrainerCallback]) -> bool:
    """Return whether a callback may read a new checkpoint in `on_save`.

    Those of W&B and MLflow do if WANDB_LOG_MODEL=checkpoint and HF_MLFLOW_LOG_ARTIFACTS=1 ask for it.
    """
    return any(READS.get(type(callback).on_save, lambda callback: True)(callback) for callback in callbacks)
