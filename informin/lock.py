"""Locks, so that no two processes write to the same output. The system releases the lock of a process that dies."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from informin.errors import UsageError, error_line
from informin.temporary import remove_leftovers

LOCK = ".lock"  # in the output folder of a run
HOLDER = "process "  # first word of the file that describes the process


@contextmanager
def locked(output: str | Path, lock: str | Path, option: str | None = None) -> Iterator[None]:
    """Hold a lock within the `with` block. Afterwards, remove its files and the created folders that are empty.

    Args:
        output: What the lock protects, for the error.
        lock: The file to lock. Its folder is created. A file next to it describes the process, since some systems do
            not allow reading a locked file.
        option: Option to name in the error.

    Raises:
        UsageError: Another process holds the lock, or its folder cannot be written.
    """
    path = Path(lock)
    made = [folder for folder in path.parents if not folder.exists()]  # innermost first
    holder, held = path.with_name(f"{path.name}-holder"), FileLock(path, timeout=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _refuse_foreign(path, holder)
        held.acquire()
        remove_leftovers(path.parent)
        now = datetime.now().isoformat(" ", "seconds")
        holder.write_text(f"{HOLDER}{os.getpid()} on {socket.gethostname()}, since {now}", encoding="utf-8")
    except Timeout:
        raise UsageError(
            f"{output} is in use by another run ({_text(holder) or 'unknown process'})",
            option=option,
            fix="Wait for that run, stop it, or choose another output.",
        ) from None
    except OSError as error:
        _give_up(held, holder, made)
        raise UsageError(
            f"{output} cannot be written: {error_line(error)}", option=option, fix="Choose a writable folder."
        ) from None
    try:
        yield
    finally:
        _give_up(held, holder, made)


@contextmanager
def only_run_in(folder: str | Path) -> Iterator[None]:
    """Create and lock the output folder of a run within the `with` block; see `locked`. Afterwards, remove it if empty.

    Raises:
        UsageError: Another run holds the lock, or the folder cannot be written.
    """
    with locked(folder, Path(folder, LOCK), "output_dir"):
        yield


def _refuse_foreign(lock: Path, holder: Path) -> None:
    """Raise OSError if a file with the name of the lock or of its description is not one: both are overwritten."""
    if os.path.lexists(lock) and (lock.is_symlink() or not lock.is_file() or lock.stat().st_size):
        raise OSError(f"{lock} is not a lock of this program")
    described = not holder.is_symlink() and (not holder.exists() or (_text(holder) or HOLDER).startswith(HOLDER))
    if not described:
        raise OSError(f"{holder} is not a file of this program")


def _give_up(lock: FileLock, holder: Path, made: list[Path]) -> None:
    """Release the lock, and remove the created folders that are empty."""
    if lock.is_locked:
        with suppress(OSError):
            holder.unlink(missing_ok=True)
            Path(lock.lock_file).unlink()  # a waiting process checks whether the locked file still exists
        lock.release()
    with suppress(OSError):  # stops at the first folder that is not empty
        for folder in made:
            folder.rmdir()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
