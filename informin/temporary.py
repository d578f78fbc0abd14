"""Temporary output: folders and files that are gone however the program ends.

    with new_file("outputs/scores.json") as path: ...   # takes its place when the block ends without an error
    with TemporaryFolder("outputs") as folder: ...      # removed when the block ends

Both are removed after errors, Ctrl-C and the signals of `informin.interrupts`. Nothing can be removed after SIGKILL or
a power failure. A folder's name therefore says which process made it, and the next program that writes beside it
removes it if that process is dead.
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

NAME = re.compile(r"\.informin-(?P<machine>[0-9a-f]{8})-(?P<pid>\d+)-(?P<start>\d+)-\w+")
OPEN: "weakref.WeakSet[TemporaryFolder]" = weakref.WeakSet()  # those of this process


class TemporaryFolder(tempfile.TemporaryDirectory):
    """A folder in `parent`, by default the system's temporary one, that nobody else can read."""

    def __init__(self, parent: str | Path | None = None):
        parent = parent or tempfile.gettempdir()
        remove_leftovers(parent)
        own = f"{_machine()}-{os.getpid()}-{_started(psutil.Process())}"
        super().__init__(prefix=f".informin-{own}-", dir=parent, ignore_cleanup_errors=True)
        OPEN.add(self)

    def cleanup(self) -> None:
        """Removes the folder, also when a signal arrives meanwhile."""
        try:
            super().cleanup()
        except KeyboardInterrupt:
            super().cleanup()
            raise


@contextmanager
def new_file(path: str | Path) -> Iterator[Path]:
    """A path to write to. The file replaces `path` when the block ends; after an error `path` is unchanged."""
    path = Path(path)
    with TemporaryFolder(path.parent) as folder:
        partial = Path(folder, path.name)
        yield partial
        os.replace(partial, path)


def allocate(path: str | Path) -> None:
    """Reserves disk space for the whole length of a file, so that writing to its mapping cannot fail.

    Without that, a full disk ends the process by SIGBUS.

    Raises:
        OSError: the disk is too small.
    """
    with open(path, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
            return
        file.seek(0)
        while held := file.read(2**20):  # macOS: what was never written takes no space
            file.seek(-len(held), os.SEEK_CUR)
            file.write(held)


def remove_leftovers(folder: str | Path) -> None:
    """Removes the temporary folders in `folder` whose processes are dead.

    Those of another machine or container are left, because this one cannot tell whether their processes live.
    """
    for path in Path(folder).glob(".informin-*"):
        made = NAME.fullmatch(path.name)
        if made and made["machine"] == _machine() and not _lives(int(made["pid"]), int(made["start"])):
            shutil.rmtree(path, ignore_errors=True)


def remove_own() -> None:
    """Removes the temporary folders of this process, before it ends without cleaning up (`os._exit`)."""
    for folder in list(OPEN):
        folder.cleanup()


@lru_cache(maxsize=1)
def _machine() -> str:
    """Where process ids mean the same: the machine, and in it the container."""
    namespace = Path("/proc/self/ns/pid")
    container = os.readlink(namespace) if namespace.is_symlink() else ""
    return hashlib.sha256(f"{socket.gethostname()} {container}".encode()).hexdigest()[:8]


def _started(process: psutil.Process) -> int:
    """When a process began, in hundredths of a second since boot: setting the clock does not change it."""
    return round((process.create_time() - psutil.boot_time()) * 100)


def _lives(pid: int, start: int) -> bool:
    """Whether a process still runs; another one may have its id by now."""
    try:
        process = psutil.Process(pid)
        return abs(_started(process) - start) <= 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
