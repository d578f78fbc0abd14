"""A lock on the output folder, so that no two runs write to it."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from informin.errors import UsageError, error_line
from informin.temporary import remove_leftovers

LOCK = ".lock"
HOLDER = ".lock-holder"  # describes the process; some systems do not allow reading a locked file


@contextmanager
def only_run_in(folder: str | Path) -> Iterator[None]:
    """Create and lock `folder` within the `with` block. Afterwards, remove it if it is empty.

    The system releases the lock of a process that dies.

    Raises:
        UsageError: Another run holds the lock, or the folder cannot be written.
    """
    folder = Path(folder)
    made = [path for path in (folder, *folder.parents) if not path.exists()]  # innermost first
    holder = folder / HOLDER
    lock = FileLock(folder / LOCK, timeout=1)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        now = datetime.now().isoformat(" ", "seconds")
        remove_leftovers(folder)
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()}, since {now}", encoding="utf-8")
    except Timeout:
        raise UsageError(
            f"{folder} is in use by another run ({_text(holder) or 'unknown process'})",
            option="output_dir",
            fix="Wait for that run, stop it, or choose another folder.",
        ) from None
    except OSError as error:
        _give_up(lock, holder, made)
        raise UsageError(
            f"{folder} cannot be written: {error_line(error)}",
            option="output_dir",
            fix="Choose a writable folder.",
        ) from None
    try:
        yield
    finally:
        _give_up(lock, holder, made)


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
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
