"""Save a checkpoint: Trainer writes most of it, and a background thread finishes it while training continues.

A checkpoint is complete once it has its manifest. Only then are older checkpoints deleted.
"""

import copy
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from accelerate.utils import recursively_apply
from safetensors import SafetensorError
from transformers import TrainerCallback
from transformers.trainer import OPTIMIZER_NAME

from informin.errors import SaveError, error_line
from informin.files import write_manifest
from informin.training.callbacks import Throughput
from informin.training.checkpoints import LAST, delete_old_checkpoints
from informin.training.signals import StopOnSignal


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
        with _deleted_after(folder, OSError, SafetensorError):
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
    with _deleted_after(folder, OSError, RuntimeError):  # torch.save raises RuntimeError if the disk is full
        if optimizer is not None:
            torch.save(optimizer, folder / OPTIMIZER_NAME)
        write_manifest(folder)
    delete_old_checkpoints(folder.parent, limit, best)


@contextmanager
def _deleted_after(folder: Path, *errors: type[Exception]) -> Iterator[None]:
    """Delete an incomplete checkpoint if one of these errors ends the block, and raise SaveError."""
    try:
        yield
    except errors as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise SaveError(
            f"{folder.name} could not be saved: {error_line(error)}. Its incomplete files were deleted. Free some "
            f"space, then resume from the checkpoint before it (`resume_from_checkpoint` {LAST})."
        ) from error


def copy_on_cpu(state: Any) -> Any:
    """Return a copy of nested dictionaries and lists whose tensors are copied to the CPU."""
    return recursively_apply(torch.Tensor.to, state, "cpu", copy=True)


def reads_checkpoints(callbacks: Iterable[TrainerCallback]) -> bool:
    """Return whether a callback may read a new checkpoint in `on_save`, as those of W&B and MLflow do."""
    others = [one for one in callbacks if not isinstance(one, Throughput | StopOnSignal)]
    return any(type(one).on_save is not TrainerCallback.on_save for one in others)
