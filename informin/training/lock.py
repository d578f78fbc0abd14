"""One run a folder: two that write to the same one would leave neither whole."""

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
HOLDER = ".lock-holder"  # in words; of a lock that is held some systems let nobody read the file


@contextmanager
def only_run_in(folder: str | Path) -> Iterator[None]:
    """Within the `with` block no other run writes to `folder`, which is made; afterwards an empty one is removed.

    The system frees the lock of a process that died.

    Raises:
        UsageError: another run holds it, or the folder cannot be written.
    """
    folder = Path(folder)
    made = [path for path in (folder, *folder.parents) if not path.exists()]  # the innermost first
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
            f"{folder} is in use by another run ({_text(holder) or 'it does not say which'}). Wait for it, stop it, or "
            "choose another folder (`output_dir`)."
        ) from None
    except OSError as error:
        _give_up(lock, holder, made)
        raise UsageError(
            f"`output_dir` {folder} cannot be written: {error_line(error)}. Name a folder that can be."
        ) from None
    try:
        yield
    finally:
        _give_up(lock, holder, made)


def _give_up(lock: FileLock, holder: Path, made: list[Path]) -> None:
    """Frees the lock; of the folders that were made for it, empty ones are removed."""
    if lock.is_locked:
        with suppress(OSError):
            holder.unlink(missing_ok=True)
            Path(lock.lock_file).unlink()  # whoever waits for it looks whether the file that it locked is still there
        lock.release()
    with suppress(OSError):  # the first that holds something ends it
        for folder in made:
            folder.rmdir()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
