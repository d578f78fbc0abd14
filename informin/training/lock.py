"""A lock on the output folder, so that no two runs write to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from informin.lock import locked

LOCK = ".lock"


@contextmanager
def only_run_in(folder: str | Path) -> Iterator[None]:
    """Create and lock `folder` within the `with` block; see `locked`. Afterwards, remove it if it is empty.

    Raises:
        UsageError: Another run holds the lock, or the folder cannot be written.
    """
    with locked(folder, Path(folder, LOCK), "output_dir"):
        yield
