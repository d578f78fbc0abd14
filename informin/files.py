"""Atomic writes, checksums, and error messages for downloads from the Hub.

A checkpoint is complete if it matches its manifest.json, which is written last and lists the size and SHA-256 of each
file.
"""

import json
import os
import re
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from huggingface_hub import constants, errors, is_offline_mode
from huggingface_hub.utils.sha import sha_fileobj

from informin.errors import UsageError, counted, error_line
from informin.temporary import new_file

AGAIN = "Download or copy the file again."
MANIFEST = "manifest.json"
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # half of a surrogate pair in JSON


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file of any size, in hexadecimal."""
    with open(path, "rb") as file:
        return sha_fileobj(file).hex()


def last_name(path: str | Path) -> str:
    """Return the name of a file or folder. `.` is resolved, links are not."""
    return Path(os.path.abspath(path)).name


def leads_outside(folder: str | Path, name: object) -> bool:
    """Return whether a path found in a file of a folder points outside of the folder, directly or through a link.

    The folder may be a link itself. In a snapshot in the Hub's cache, the blobs of the same repository count as inside.
    """
    if not isinstance(name, str) or "\0" in name or "\\" in name:
        return True
    path = PurePosixPath(name)
    if path.is_absolute() or PureWindowsPath(name).drive or ".." in path.parts:
        return True
    root = Path(folder).resolve()
    try:
        target = (root / name).resolve()
    except (OSError, RuntimeError):  # circular links
        return True
    blobs = root.parent.parent / "blobs"
    return not (target.is_relative_to(root) or (root.parent.name == "snapshots" and target.is_relative_to(blobs)))


def regular_text(path: str | Path) -> str:
    """Return the text of a UTF-8 file.

    Raises:
        OSError: The file cannot be read, or is a pipe or a device, which may never end.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(f"{path} is not a regular file")
    return Path(path).read_text(encoding="utf-8")


def parse_json(text: str) -> Any:
    """Parse a JSON text.

    Raises:
        ValueError: The text is not JSON, is nested too deeply, or contains half of a surrogate pair.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("lists or mappings are nested too deeply") from None
    if SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()  # UnicodeEncodeError is a ValueError
    return value


def read_json(path: str | Path, kind: type = dict):
    """Read a JSON file whose top level is a `kind`. Raise UsageError if it is not."""
    try:
        value = parse_json(regular_text(path))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not JSON ({error_line(error)})", fix=AGAIN) from None
    if not isinstance(value, kind):
        raise UsageError(f"{path} is not valid: found {type(value).__name__}", needed=kind.__name__, fix=AGAIN)
    return value


def write_json(path: str | Path, values: object, indent: int = 1, allow_nan: bool = False) -> None:
    """Write a JSON file atomically: readers see either the old file or the new one.

    Args:
        allow_nan: Also write NaN and infinity, which Python can parse but JSON does not define.

    Raises:
        ValueError: A value is NaN or infinity, and `allow_nan` is not set.
    """
    text = json.dumps(values, indent=indent, ensure_ascii=False, allow_nan=allow_nan) + "\n"
    with new_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def set_usual_modes(folder: str | Path) -> None:
    """Give all files of a folder the mode of new files under the umask. Libraries write some with other modes."""
    new = Path(folder, ".new")
    new.touch()
    mode = new.stat().st_mode
    new.unlink()
    for path in Path(folder).rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)


def write_manifest(checkpoint: str | Path) -> None:
    """Write the manifest of a complete checkpoint."""
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
        if leads_outside(folder, name):
            return f"its {MANIFEST} lists {name!r:.60}, which is outside of the folder"
        path = folder / name
        if not os.path.isfile(path):  # Path.is_file raises for a name that is too long
            return f"{name} is missing"
        size = path.stat().st_size
        if size != entry["size"]:
            return f"{name} has {counted(size, 'byte')} instead of {entry['size']:,}"
        if contents and sha256(path) != entry["sha256"]:
            return f"{name} has changed: its SHA-256 differs"
    return None


def manifest_files(checkpoint: Path) -> dict[str, dict] | None:
    """Return the entries of a manifest; None if it is missing or invalid."""
    try:
        listed = parse_json(regular_text(checkpoint / MANIFEST))["files"]
        valid = all(isinstance(entry["size"], int) and isinstance(entry["sha256"], str) for entry in listed.values())
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return listed if valid else None


def hub_problem(error: BaseException, revision: str | None = None) -> str:
    """Return why a download from the Hub failed, to follow a colon or a comma in a message."""
    if isinstance(error, errors.HFValidationError):
        return "it is not a valid name on the Hub"
    if is_offline_mode():
        return "it is not in the local cache of the Hub, and HF_HUB_OFFLINE is set"
    if isinstance(error, errors.GatedRepoError):
        return "it is gated on the Hub: accept its conditions, then run `hf auth login`"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "the Hub has no such repository, or it is private (`hf auth login`)"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"its repository on the Hub has no revision {revision}"
    if isinstance(error, errors.LocalEntryNotFoundError):
        return f"the Hub ({constants.ENDPOINT}) cannot be reached"
    return f"the Hub reports: {error_line(error)}"
