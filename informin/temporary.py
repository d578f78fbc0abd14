"""Temporary files and folders that are removed however the program ends.

    with new_file("outputs/scores.json") as path: ...   # replaces the file if the block ends without an error
    with TemporaryFolder("outputs") as folder: ...      # removed when the block ends

Both are removed after errors, Ctrl-C and the signals of `informin.interrupts`. Nothing can be removed after SIGKILL or
a power failure. Folder names therefore contain the id of the process that created them. The next program that writes
to the same parent folder removes the folders of dead processes.
"""

import hashlib
import os
import re
import shutil
import socket
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import psutil

PREFIX = ".informin-"
NAME = re.compile(r"\.informin-(?P<machine>[0-9a-f]{8})-(?P<pid>\d+)-(?P<start>\d+)-\w+")
OPEN: "weakref.WeakSet[TemporaryFolder]" = weakref.WeakSet()  # folders of this process


class TemporaryFolder(tempfile.TemporaryDirectory):
    """A folder that only this user can read, in `parent` or in the system's temporary folder."""

    def __init__(self, parent: str | Path | None = None):
        parent = parent or tempfile.gettempdir()
        remove_leftovers(parent)
        own = f"{_machine()}-{os.getpid()}-{_started(psutil.Process())}"
        super().__init__(prefix=f"{PREFIX}{own}-", dir=parent, ignore_cleanup_errors=True)
        OPEN.add(self)

    def cleanup(self) -> None:
        """Remove the folder, even if a signal arrives during the removal."""
        try:
            super().cleanup()
        except KeyboardInterrupt:
            super().cleanup()
            raise


@contextmanager
def new_file(path: str | Path) -> Iterator[Path]:
    """Yield a path to write to. The file replaces `path` at the end of the block, but not after an error."""
    path = Path(path)
    with TemporaryFolder(path.parent) as folder:
        partial = Path(folder, path.name)
        yield partial
        os.replace(partial, path)


def allocate(path: str | Path) -> None:
    """Reserve disk space for the whole length of a file, so that writing to its memory map cannot fail.

    Otherwise a full disk would end the process with SIGBUS.

    Raises:
        OSError: There is not enough space.
    """
    with open(path, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
            return
        file.seek(0)
        while data := file.read(2**20):  # macOS does not allocate blocks that were never written
            file.seek(-len(data), os.SEEK_CUR)
            file.write(data)


def remove_leftovers(folder: str | Path) -> None:
    """Remove temporary folders in `folder` that were created by processes that are dead.

    Folders created on another machine or in another container are kept, since their processes cannot be checked.
    """
    for path in Path(folder).glob(f"{PREFIX}*"):
        made = NAME.fullmatch(path.name)
        if made and made["machine"] == _machine() and not _is_running(int(made["pid"]), int(made["start"])):
            shutil.rmtree(path, ignore_errors=True)


def remove_own() -> None:
    """Remove the temporary folders of this process, before it ends without cleanup (`os._exit`)."""
    for folder in list(OPEN):
        folder.cleanup()


@lru_cache(maxsize=1)
def _machine() -> str:
    """Return an id of the machine and the container, within which process ids are unique."""
    namespace = Path("/proc/self/ns/pid")
    container = os.readlink(namespace) if namespace.is_symlink() else ""
    return hashlib.sha256(f"{socket.gethostname()} {container}".encode()).hexdigest()[:8]


def _started(process: psutil.Process) -> int:
    """Return the start of a process in 1/100 seconds since boot, which does not depend on the system clock."""
    return round((process.create_time() - psutil.boot_time()) * 100)


def _is_running(pid: int, start: int) -> bool:
    """Return whether a process is still running, and not another process with the same id."""
    try:
        process = psutil.Process(pid)
        return abs(_started(process) - start) <= 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
