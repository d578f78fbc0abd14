"""Fingerprints of a run's inputs, so that a resumed run can detect changes.

The record has checksums of the encoder, the evaluation data and the sentences of a map-style data set; this module
covers the rest. Renaming a file is not a change.
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from huggingface_hub.utils.sha import sha_fileobj

from informin.errors import counted

LARGE = 10**9  # bytes; only a sample of larger files is hashed
BLOCKS, BLOCK_BYTES = 256, 2**20  # number and size in bytes of the sampled blocks, including the first and the last


def fingerprint(path: str | Path) -> dict:
    """Return `name`, `size` in bytes and `sha256` of a file. Above 1 GB, only 256 MiB are hashed."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= LARGE:
            checksum = sha_fileobj(file).hex()
        else:
            digest = hashlib.sha256()
            for number in range(BLOCKS):
                file.seek((size - BLOCK_BYTES) * number // (BLOCKS - 1))
                digest.update(file.read(BLOCK_BYTES))
            checksum = digest.hexdigest()
    return {"name": Path(path).name, "size": size, "sha256": checksum}


def fingerprints(paths: Iterable[str | Path]) -> list[dict]:
    """Return the fingerprint of each file."""
    return [fingerprint(path) for path in paths]


def with_source(stream: datasets.IterableDataset, source: dict) -> datasets.IterableDataset:
    """Return the stream with a description of its source, which derived streams inherit."""
    stream.info.download_checksums = source
    return stream


def source_of(stream: datasets.IterableDataset) -> dict:
    """Return the description of a stream's source; empty if it has none."""
    return stream.info.download_checksums or {}


def fingerprint_of_tokens(rows: Iterable[dict]) -> str:
    """Return the SHA-256 of the rows' `input_ids`, which depends on their order."""
    digest = hashlib.sha256()
    for row in rows:
        tokens = np.asarray(row["input_ids"], np.int64).tobytes()
        digest.update(len(tokens).to_bytes(8, "little") + tokens)
    return digest.hexdigest()


def changed_inputs(began: dict, now: dict) -> list[str]:
    """Return descriptions of the inputs that changed, were added or were removed."""
    changed = []
    for name in dict.fromkeys([*began, *now]):
        old, new = began.get(name), now.get(name)
        if _content(old) != _content(new):
            changed.append(f"{name} {_shown(old, new)}, now {_shown(new, old)}")
    return changed


def _content(value: Any) -> Any:
    """Return a value without file names."""
    return [(file["size"], file["sha256"]) for file in value] if _are_files(value) else value


def _are_files(value: Any) -> bool:
    """Return whether a value is a list of file fingerprints. A record that was edited by hand can hold anything."""
    kinds = {"name": str, "size": int, "sha256": str}
    return isinstance(value, list) and all(
        isinstance(file, dict) and all(isinstance(file.get(key), kind) for key, kind in kinds.items()) for file in value
    )


def _shown(value: Any, other: Any) -> str:
    """Return a value as text; for lists of files, only those that the other value lacks."""
    if not _are_files(value):
        return "none" if value is None else f"{value!r:.60}"
    others = _content(other) if _are_files(other) else []
    differ = [file for file in value if (file["size"], file["sha256"]) not in others] or value
    return " ".join(
        f"{file['name']} ({counted(file['size'], 'byte')}, SHA-256 {file['sha256'][:8]})" for file in differ[:3]
    )
