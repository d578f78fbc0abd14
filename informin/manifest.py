"""Which checkpoints are whole: manifest.json, written last, has the size and the SHA-256 of each of their files."""

import json
from pathlib import Path

from informin.errors import counted
from informin.files import sha256, write_json

MANIFEST = "manifest.json"


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
