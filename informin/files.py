"""Files that are whole or not there, and their checksums."""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path


def sha256(path: str | Path) -> str:
    """SHA-256 of a file of any size, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def write_json(path: str | Path, values: object) -> None:
    """Writes a JSON file in one go: whoever reads it finds the old one or the new one, whatever happens on the way."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    text = json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink()
