"""Output files and folders that appear when they are complete, and that only one process writes at a time.

    with only_writer("outputs/better"):                   # before the long work: is it new, free and writable?
        ...
        with new_folder("outputs/better") as folder: ...  # the folder appears when the block ends
        with new_files("outputs/better") as folder: ...   # its files replace those in an existing folder

Temporary folders and locks are next to the output, never inside of it. The exception is an existing folder that must
stay where it is, such as a mounted one.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from informin.errors import WRITABLE, InforMinError, UsageError, error_line, is_write_error
from informin.lock import locked
from informin.temporary import PREFIX, TemporaryFolder, new_file, remove_leftovers


@contextmanager
def only_writer(path: str | Path, option: str | None = None) -> Iterator[None]:
    """Lock an output file or folder within the `with` block. Every command does this before its long work.

    Raises:
        UsageError: Another process writes it, or its folder cannot be written.
    """
    with locked(path, _lock_of(path), option):
        yield


@contextmanager
def only_writers(paths: Iterable[str | Path]) -> Iterator[None]:
    """Lock several outputs; see `only_writer`."""
    with ExitStack() as stack:
        for path in paths:
            stack.enter_context(only_writer(path))
        yield


def refuse_unwritable(path: str | Path, option: str | None = None) -> None:
    """Raise UsageError, for this option, if an output is being written or its folder cannot be written."""
    with only_writer(path, option):
        pass


@contextmanager
def writing(what: object, option: str | None = None, fix: str = WRITABLE) -> Iterator[None]:
    """Raise UsageError if something cannot be written in the `with` block, because of the disk or the folder.

    Args:
        what: The file or folder that is written.
        option: Option to name in the error.
        fix: What to do about it.
    """
    try:
        yield
    except Exception as error:  # not all libraries raise OSError
        if isinstance(error, InforMinError) or not is_write_error(error):
            raise
        raise UsageError(f"{what} cannot be written: {error_line(error)}", option=option, fix=fix) from None


@contextmanager
def new_folder(folder: str | Path, option: str | None = None) -> Iterator[Path]:
    """Yield an empty folder to fill. It becomes `folder` when the block ends, but not after an error.

    Args:
        folder: Missing or empty.
        option: Option to name in errors.

    Raises:
        UsageError: `folder` is not empty, or it or a file in the block cannot be written.
    """
    refuse_used(folder, option)
    target = Path(os.path.realpath(folder))
    new: Path | None = None
    try:
        with writing(folder, option), TemporaryFolder(target if _must_stay(target) else _nearest(target)) as partial:
            new = Path(partial, target.name or "root")
            new.mkdir()
            yield new
            _move(new, target)
    except UsageError as error:  # of another block inside this one
        if new is None or str(new) not in error.found:
            raise
        found = error.found.replace(str(new), str(folder))
        raise UsageError(found, option=error.option, needed=error.needed, fix=error.fix) from None


@contextmanager
def new_files(folder: str | Path) -> Iterator[Path]:
    """Yield an empty folder to fill. Its files move to `folder` when the block ends, but not after an error.

    They replace files of the same name; other files are kept. A missing folder is created.
    """
    target = Path(os.path.realpath(folder))
    with TemporaryFolder(target if target.is_dir() else _nearest(target)) as partial:
        new = Path(partial)
        yield new
        target.mkdir(parents=True, exist_ok=True)
        for path in [path for path in new.rglob("*") if path.is_file()]:
            place = target / path.relative_to(new)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, place)


def refuse_used(folder: str | Path, option: str | None = None) -> None:
    """Raise UsageError, for this option, if a folder exists and is not empty."""
    folder = Path(folder)
    if not os.path.lexists(folder):
        return
    remove_leftovers(folder)
    own = (PREFIX, _lock_of(folder).name) if _must_stay(Path(os.path.realpath(folder))) else ()
    try:
        used = not folder.is_dir() or any(not path.name.startswith(own) for path in folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error_line(error)}", option=option) from None
    if used:
        raise UsageError(f"{folder} is in use", option=option, needed="a new folder")


def refuse_existing(path: str | Path, option: str | None = None) -> None:
    """Raise UsageError, for this option, if there is a file, folder or link at a path."""
    if os.path.lexists(path):
        raise UsageError(f"{path} already exists", option=option, fix="Choose another file, or delete it.")


def save_texts(folder: str | Path, texts: Mapping[str, str]) -> None:
    """Write files into a folder, which is created. None of them appears before all are complete.

    Raises:
        UsageError: They cannot be written.
    """
    with writing(folder), new_files(folder) as new:
        for name, text in texts.items():
            (new / name).write_text(text, encoding="utf-8")


def save_text(path: str | Path, text: str) -> None:
    """Write a text atomically. Raise UsageError if that fails; an earlier file is kept then."""
    with writing(path), new_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def make_folder(folder: str | Path, option: str | None = None) -> None:
    """Create a folder if needed. Raise UsageError, for this option, if that fails."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be created ({error.strerror})", option=option, fix="Choose another folder."
        ) from None


def _lock_of(path: str | Path) -> Path:
    target = Path(os.path.realpath(path))
    return (target if _must_stay(target) else target.parent) / f".{target.name}.lock"


def _must_stay(folder: Path) -> bool:
    """Return whether an existing folder cannot be replaced: it is mounted, a shell is in it, or its parent is fixed."""
    if not folder.is_dir():
        return False
    return os.path.ismount(folder) or folder.samefile(os.curdir) or not os.access(folder.parent, os.W_OK)


def _nearest(path: Path) -> Path:
    """Return the nearest parent that exists."""
    return next(parent for parent in path.parents if parent.exists())


def _move(new: Path, folder: Path) -> None:
    """Move a complete folder to its final path, which is missing or an empty folder."""
    if _must_stay(folder):
        for path in new.iterdir():
            path.rename(folder / path.name)
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists():
        folder.rmdir()  # an error if it is not empty by now
    os.replace(new, folder)
