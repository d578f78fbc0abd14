"""Files that are whole or not there, their checksums, and why the Hub gave none.

A checkpoint is whole when its manifest.json says so: written last, with the size and the SHA-256 of each of its files.
"""

import json
import os
import re
from pathlib import Path, PurePosixPath, PureWindowsPath

from huggingface_hub import constants, errors, is_offline_mode
from huggingface_hub.utils.sha import sha_fileobj

from informin.errors import UsageError, counted, error_line
from informin.temporary import new_file

AGAIN = "Download or copy the file again."
MANIFEST = "manifest.json"
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # as JSON spells half a pair


def sha256(path: str | Path) -> str:
    """SHA-256 of a file of any size, in hexadecimal."""
    with open(path, "rb") as file:
        return sha_fileobj(file).hex()


def last_name(path: str | Path) -> str:
    """What a file or folder is called where it lies: `.` has a name too, and a link its own."""
    return Path(os.path.abspath(path)).name


def leads_outside(folder: str | Path, name: object) -> bool:
    """Whether a path that a file of a folder names leads out of the folder, by itself or through a link.

    The folder may be a link itself. In a snapshot of the Hub's cache, the blobs of the same repository are inside.
    """
    if not isinstance(name, str) or "\0" in name or "\\" in name:
        return True
    path = PurePosixPath(name)
    if path.is_absolute() or PureWindowsPath(name).drive or ".." in path.parts:
        return True
    root = Path(folder).resolve()
    try:
        target = (root / name).resolve()
    except (OSError, RuntimeError):  # links in a circle
        return True
    blobs = root.parent.parent / "blobs"
    return not (target.is_relative_to(root) or (root.parent.name == "snapshots" and target.is_relative_to(blobs)))


def regular_text(path: str | Path) -> str:
    """The text of a UTF-8 file; OSError where it cannot be read, or is a pipe or a device, which may never end."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(f"{path} is not a regular file")
    return Path(path).read_text(encoding="utf-8")


def parse_json(text: str) -> object:
    """What a JSON text says; ValueError for no JSON, for nesting that is too deep, and for half a surrogate pair."""
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
    """Writes a JSON file in one go: whoever reads it finds the old one or the new one, whatever happens on the way.

    NaN and infinity, which JSON does not know and Python reads, are a ValueError unless they are allowed.
    """
    text = json.dumps(values, indent=indent, ensure_ascii=False, allow_nan=allow_nan) + "\n"
    with new_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def set_usual_modes(folder: str | Path) -> None:
    """Gives the files of a folder the mode that the umask gives new files: what libraries write or copy has others."""
    new = Path(folder, ".new")
    new.touch()
    mode = new.stat().st_mode
    new.unlink()
    for path in Path(folder).rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)


def write_manifest(checkpoint: str | Path) -> None:
    """Says that a checkpoint is whole as it is now."""
    folder = Path(checkpoint)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    listed = {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": sha256(path)} for path in files
    }
    write_json(folder / MANIFEST, {"files": listed})


def damage(checkpoint: str | Path, contents: bool = True) -> str | None:
    """What is wrong with a checkpoint, in words, or None; without `contents`, by the sizes alone, which is quick."""
    folder = Path(checkpoint)
    if not folder.is_dir():
        return "there is no such folder"
    listed = manifest_files(folder)
    if listed is None:
        return f"it has no readable {MANIFEST}, so it was not written to the end"
    for name, entry in listed.items():
        if leads_outside(folder, name):
            return f"its {MANIFEST} names {name!r:.60}, which is outside of the folder"
        path = folder / name
        if not os.path.isfile(path):  # Path.is_file raises for a name that is too long
            return f"{name} is missing"
        size = path.stat().st_size
        if size != entry["size"]:
            return f"{name} has {counted(size, 'byte')}, and {entry['size']:,} were written"
        if contents and sha256(path) != entry["sha256"]:
            return f"{name} is not as it was written: its SHA-256 differs"
    return None


def manifest_files(checkpoint: Path) -> dict[str, dict] | None:
    """What a manifest lists; None where there is none, or it is no manifest."""
    try:
        listed = parse_json(regular_text(checkpoint / MANIFEST))["files"]
        whole = all(isinstance(entry["size"], int) and isinstance(entry["sha256"], str) for entry in listed.values())
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return listed if whole else None


def hub_problem(error: BaseException, revision: str | None = None) -> str:
    """Why something was not fetched from the Hub, to be said after a colon or a comma."""
    if isinstance(error, errors.HFValidationError):
        return "the Hub has no such names"
    if is_offline_mode():
        return "it is not in the Hub's cache (the Hub is not asked, as HF_HUB_OFFLINE is set)"
    if isinstance(error, errors.GatedRepoError):
        return "on the Hub its conditions must be accepted first, by whom `hf auth login` logs in"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "the Hub has no such repository, or none that you may read (`hf auth login`)"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"on the Hub it has no revision {revision}"
    if isinstance(error, errors.LocalEntryNotFoundError):
        return f"the Hub ({constants.ENDPOINT}) cannot be reached"
    return f"the Hub says: {error_line(error)}"
