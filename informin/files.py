"""Files and folders that appear once they are complete, JSON, checksums, and the manifest of a checkpoint."""

import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from huggingface_hub.utils.sha import sha_fileobj
from safetensors import SafetensorError

from informin.errors import SaveError, UsageError, counted, error_line, is_wrong_path

PREFIX = ".informin-"  # of temporary files and folders
# What Finder, Explorer and file systems put into a folder, in lower case.
OF_THE_SYSTEM = (
    *(".ds_store", ".localized", ".spotlight-v100", ".fseventsd", ".trashes", ".temporaryitems"),
    *("desktop.ini", "thumbs.db", "system volume information", "$recycle.bin", "lost+found"),
)


@contextmanager
def new_file(path: str | Path) -> Iterator[Path]:
    """Yield a path to write to. The file replaces `path` at the end of the block, but not after an error.

    The parent folder is created. A link is replaced, not its target.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=path.parent, ignore_cleanup_errors=True) as temporary:
        partial = Path(temporary, path.name)
        yield partial
        os.replace(partial, path)


@contextmanager
def new_files(folder: str | Path) -> Iterator[Path]:
    """Yield an empty folder to fill. Its files move to `folder` when the block ends, but not after an error.

    They replace files of the same name; other files are kept. A missing folder is created.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    partial = target / f"{PREFIX}new"
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    try:
        partial.mkdir()
        yield partial
        for path in [path for path in partial.rglob("*") if path.is_file()]:
            place = target / path.relative_to(partial)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def new_folder(
    folder: str | Path, option: str | None = None, replaces: Callable[[Path], bool] | None = None
) -> Iterator[Path]:
    """Yield an empty folder to fill. It becomes `folder` when the block ends, but not after an error.

    An existing folder stays, because it may be mounted, and gets the content.

    Args:
        folder: Missing or empty, or what `replaces` accepts.
        option: Option to name in errors.
        replaces: Returns whether a folder is an older output of the same kind, whose content is replaced.

    Raises:
        UsageError: `folder` is in use, or another process writes it.
        SaveError: A file could not be written.
    """
    target = Path(os.path.realpath(folder))
    with only_writer(folder, option), named_in_errors(folder):
        raise_if_used(folder, option, replaces)
        replaced = contents(target) if target.is_dir() else []
        partial = (target if target.is_dir() else target.parent) / f"{PREFIX}{target.name}"
        shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
        try:
            partial.mkdir()
            yield partial
            if target.is_dir():
                with tempfile.TemporaryDirectory(prefix=PREFIX, dir=target) as old:
                    try:
                        move(replaced, Path(old))
                    except BaseException:  # such as a folder in it that belongs to root
                        move(Path(old).iterdir(), target)
                        raise
                    move(partial.iterdir(), target)
                    # The new files are in place before the old ones are deleted, which can take long.
            else:
                os.replace(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def move(paths: Iterable[Path], folder: Path) -> None:
    """Move files and folders into a folder on the same file system."""
    for path in list(paths):
        os.replace(path, folder / path.name)


def raise_if_used(
    folder: str | Path, option: str | None = None, replaces: Callable[[Path], bool] | None = None
) -> None:
    """Raise UsageError if a path exists and cannot become an output.

    Temporary files in a folder and files of the operating system do not count.

    Args:
        folder: The path.
        option: Option to name in the error.
        replaces: Returns whether a folder is an older output of the same kind, which can be replaced.
    """
    folder = Path(folder)
    if not os.path.lexists(folder):
        return
    found = f"{folder} is in use"
    if folder.is_dir():
        used = [path.name for path in contents(folder)]
        has_checkpoints = any(name.startswith("checkpoint-") for name in used)
        if not used or (replaces and not has_checkpoints and replaces(folder)):
            return
        if has_checkpoints:
            fix = "Replacing it would delete the checkpoints of a training run: use another folder."
            raise UsageError(found, option=option, fix=fix)
        found += f": it contains {used[0]}"
    fix = "Use another folder, or replace an output of the same command with `overwrite`."
    if replaces:
        fix = "It is not an output of the same command: use another folder."
    raise UsageError(found, option=option, fix=fix)


def contents(folder: Path) -> list[Path]:
    """Return what a folder contains, in order, apart from temporary files and those of the operating system."""
    names = {path: path.name.lower() for path in folder.iterdir()}
    incidental = (PREFIX, "._")  # macOS adds ._NAME to NAME on other file systems
    return sorted(path for path, name in names.items() if not name.startswith(incidental) and name not in OF_THE_SYSTEM)


def files_in(folder: Path) -> Iterator[Path]:
    """Yield the files and links in a folder and its subfolders, with the exceptions of `contents`."""
    for path in contents(folder):
        if path.is_dir() and not path.is_symlink():
            yield from files_in(path)
        else:
            yield path


@contextmanager
def only_writer(path: str | Path, option: str | None = None) -> Iterator[None]:
    """Lock an output file or folder within the `with` block. Blocks of one process can be nested.

    Args:
        path: The output, which need not exist. Its parent folder is created.
        option: Option to name in the error.

    Raises:
        UsageError: Another process writes it, or its folder cannot be written.
    """
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir() and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        # A mounted folder can be writable although its parent is not.
        folder = target.parent if os.access(target.parent, os.W_OK) or not target.is_dir() else target
        lock = FileLock(folder / f"{PREFIX}{target.name}.lock", timeout=1, is_singleton=True)
        lock.acquire()
    except Timeout:
        raise UsageError(f"{path} is being written by another process", option=option, fix="Wait for it.") from None
    except OSError as error:
        if not is_wrong_path(error):
            raise
        found = f"is {path}, which" if option else str(path)
        found += f" cannot be written ({error_line(error)})"
        raise UsageError(found, option=option, fix="Choose another place.") from error
    try:
        yield
    finally:
        if lock.lock_counter == 1:
            Path(lock.lock_file).unlink(missing_ok=True)  # before the release; a waiting process sees that it is gone
        lock.release()


@contextmanager
def named_in_errors(path: str | Path) -> Iterator[None]:
    """Raise SaveError with the name of an output that cannot be written within the block, such as on a full disk.

    The operating system does not name the file then, and NumPy does not give the reason.
    """
    try:
        yield
    except Exception as error:
        is_inner = any(part.startswith(PREFIX) for part in Path(path).parts)  # of an output whose name the user knows
        if is_inner or not is_write_error(error):
            raise
        raise SaveError(
            f"{path} could not be written ({error_line(error)}). Check the free space and the permissions there."
        ) from error


def is_write_error(error: BaseException) -> bool:
    """Return whether an error is one of those that writing a file raises, such as on a full disk.

    safetensors has its own error, and tokenizers a plain Exception with the message of the operating system.
    """
    is_of_tokenizers = type(error) is Exception and "(os error " in str(error)
    return isinstance(error, (OSError, SafetensorError)) or is_of_tokenizers


def save_text(path: str | Path, text: str) -> None:
    """Write a text file atomically: readers see either the old file or the new one.

    Raises:
        SaveError: It could not be written.
    """
    with named_in_errors(path), new_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: str | Path, values: object, indent: int = 1) -> None:
    """Write a JSON file atomically: readers see either the old file or the new one.

    Bytes of file names that are not UTF-8 are escaped, and read back as they were.

    Raises:
        ValueError: A value is NaN or infinity, which JSON does not define.
    """
    text = json.dumps(values, indent=indent, ensure_ascii=False, allow_nan=False) + "\n"
    text = re.sub("[\ud800-\udfff]", lambda match: json.dumps(match[0])[1:-1], text)
    with new_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def read_json(path: str | Path) -> dict:
    """Read a JSON file that holds one object.

    Raises:
        UsageError: The file is not JSON, or holds something else.
    """
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path} is not JSON ({error})") from None
    if not isinstance(values, dict):
        raise UsageError(f"{path} holds a {type(values).__name__}", needed="a JSON object")
    return values


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file of any size, in hexadecimal."""
    with open(path, "rb") as file:
        return sha_fileobj(file).hex()


def last_name(path: str | Path) -> str:
    r"""Return the name of a file or folder as valid text: a byte that is not UTF-8 is shown, as in `caf\xe9.txt`.

    `.` is resolved, links are not.
    """
    return os.fsencode(Path(os.path.abspath(path)).name).decode(errors="backslashreplace")


def set_usual_modes(folder: str | Path) -> None:
    """Give all files of a folder the mode of new files under the umask. Libraries write some with other modes."""
    new = Path(folder, ".new")
    new.touch()
    mode = new.stat().st_mode
    new.unlink()
    for path in Path(folder).rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)


# Checkpoints. One is complete if it matches its manifest, which is written last.
MANIFEST = "manifest.json"


def write_manifest(checkpoint: str | Path) -> None:
    """Write the manifest of a complete checkpoint: the size and SHA-256 of each file."""
    folder = Path(checkpoint)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    listed = {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": sha256(path)} for path in files
    }
    write_json(folder / MANIFEST, {"files": listed})


def damage(checkpoint: str | Path, contents: bool = True) -> str | None:
    """Return what is wrong with a checkpoint, or None. Without `contents`, only sizes are compared, which is fast."""
    folder = Path(checkpoint)
    if not folder.is_dir():
        return "there is no such folder"
    listed = manifest_files(folder)
    if listed is None:
        return f"it has no readable {MANIFEST}, so it is incomplete"
    for name, entry in listed.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        size = path.stat().st_size
        if size != entry["size"]:
            return f"{name} has {counted(size, 'byte')} instead of {entry['size']:,}"
        if contents and sha256(path) != entry["sha256"]:
            return f"{name} has changed: its SHA-256 differs"
    return None


def manifest_files(checkpoint: str | Path) -> dict[str, dict] | None:
    """Return the entries of a manifest by file name; None if it is missing or damaged."""
    try:
        return json.loads(Path(checkpoint, MANIFEST).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
