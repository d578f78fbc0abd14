"""JSON files, checksums, and the manifest of a checkpoint.

A checkpoint is complete if it matches its manifest.json, which is written last and lists the size and SHA-256 of each
file.
"""

import json
import os
import re
from pathlib import Path

from huggingface_hub.utils.sha import sha_fileobj

from informin.errors import UsageError, counted
from informin.outputs import new_file

MANIFEST = "manifest.json"


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file of any size, in hexadecimal."""
    with open(path, "rb") as file:
        return sha_fileobj(file).hex()


def last_name(path: str | Path) -> str:
    r"""Return the name of a file or folder as valid text: a byte that is not UTF-8 is shown, as in `caf\xe9.txt`.

    `.` is resolved, links are not.
    """
    return os.fsencode(Path(os.path.abspath(path)).name).decode(errors="backslashreplace")


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
