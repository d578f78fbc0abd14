"""Files that are whole or not there, their checksums, and why the Hub gave none.

A checkpoint is whole when its manifest.json says so: written last, with the size and the SHA-256 of each of its files.
"""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

from huggingface_hub import constants, is_offline_mode
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from informin.errors import counted, error_line

MANIFEST = "manifest.json"


def sha256(path: str | Path) -> str:
    """SHA-256 of a file of any size, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def write_json(path: str | Path, values: object, indent: int = 1, allow_nan: bool = False) -> None:
    """Writes a JSON file in one go: whoever reads it finds the old one or the new one, whatever happens on the way.

    Args:
        allow_nan: write NaN and infinity, which JSON does not know and Python reads.

    Raises:
        ValueError: there is a number of those, and they are not allowed.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    text = json.dumps(values, indent=indent, ensure_ascii=False, allow_nan=allow_nan) + "\n"
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink()


def write_manifest(checkpoint: str | Path) -> None:
    """Says that a checkpoint is whole as it is now."""
    folder = Path(checkpoint)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    listed = {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": sha256(path)} for path in files
    }
    write_json(folder / MANIFEST, {"files": listed})


def damage(checkpoint: str | Path, contents: bool = True) -> str | None:
    """What is wrong with a checkpoint, in words; None for a whole one.

    Args:
        contents: read every file and compare its checksum; without, sizes alone, which is quick.
    """
    folder = Path(checkpoint)
    if not folder.is_dir():
        return "there is no such folder"
    listed = manifest_files(folder)
    if listed is None:
        return f"it has no readable {MANIFEST}, so it was not written to the end"
    for name, entry in listed.items():
        path = folder / name
        if not path.is_file():
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
        listed = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))["files"]
        whole = all(isinstance(entry["size"], int) and isinstance(entry["sha256"], str) for entry in listed.values())
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return listed if whole else None


def hub_problem(error: BaseException, revision: str | None = None) -> str:
    """Why something was not fetched from the Hub, to be said after a colon or a comma."""
    if isinstance(error, HFValidationError):
        return "the Hub has no such names"
    if is_offline_mode():
        return "it is not in the Hub's cache (the Hub is not asked, as HF_HUB_OFFLINE is set)"
    if isinstance(error, GatedRepoError):
        return "on the Hub its conditions must be accepted first, by whom `hf auth login` logs in"
    if isinstance(error, RepositoryNotFoundError):
        return "the Hub has no such repository, or none that you may read (`hf auth login`)"
    if isinstance(error, RevisionNotFoundError):
        return f"on the Hub it has no revision {revision}"
    if isinstance(error, LocalEntryNotFoundError):
        return f"the Hub ({constants.ENDPOINT}) cannot be reached"
    return f"the Hub says: {error_line(error)}"
