"""Fingerprints of what a run reads, by which a run that resumes notices that it was changed.

The sentences of a map-style data set, the encoder and the development data have checksums of their own in the record;
here is the rest. Files may have been renamed.
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import datasets
import numpy as np
from huggingface_hub.utils.sha import sha_fileobj

from informin.errors import counted

LARGE = 10**9  # bytes; of larger files a sample is read
BLOCKS, BLOCK = 256, 2**20  # of the sample: so many, of so many bytes, the first and the last among them


def fingerprint(path: str | Path) -> dict:
    """`name`, `size` in bytes and `sha256` of a file; of a file above 1 GB the SHA-256 of 256 MiB spread over it."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= LARGE:
            checksum = sha_fileobj(file).hex()
        else:
            digest = hashlib.sha256()
            for number in range(BLOCKS):
                file.seek((size - BLOCK) * number // (BLOCKS - 1))
                digest.update(file.read(BLOCK))
            checksum = digest.hexdigest()
    return {"name": Path(path).name, "size": size, "sha256": checksum}


def fingerprints(paths: Iterable[str | Path]) -> list[dict]:
    """`fingerprint` of each file."""
    return [fingerprint(path) for path in paths]


def with_source(stream: datasets.IterableDataset, source: dict) -> datasets.IterableDataset:
    """A stream that says what it reads, and passes that on to what is made of it."""
    stream.info.download_checksums = source
    return stream


def source_of(stream: datasets.IterableDataset) -> dict:
    """What a stream says that it reads; empty where it does not."""
    return stream.info.download_checksums or {}


def fingerprint_of_tokens(rows: Iterable[dict]) -> str:
    """SHA-256 of the `input_ids` of rows, in their order."""
    digest = hashlib.sha256()
    for row in rows:
        tokens = np.asarray(row["input_ids"], np.int64).tobytes()
        digest.update(len(tokens).to_bytes(8, "little") + tokens)
    return digest.hexdigest()


def changed_inputs(began: dict, now: dict) -> list[str]:
    """Inputs, by name, that are not what they were, in words; a run may have got or lost some."""
    words = []
    for name in dict.fromkeys([*began, *now]):
        old, new = began.get(name), now.get(name)
        if _content(old) != _content(new):
            words.append(f"{name} {_words(old, new)}, now {_words(new, old)}")
    return words


def _content(value: object) -> object:
    """Without the names of files."""
    files = isinstance(value, list) and all(isinstance(item, dict) for item in value)
    return [(file["size"], file["sha256"]) for file in value] if files else value


def _words(value: object, other: object) -> str:
    """Of files only those that the other value does not have."""
    if not isinstance(value, list):
        return "none" if value is None else repr(value)
    others = _content(other) if isinstance(other, list) else []
    differ = [file for file in value if (file["size"], file["sha256"]) not in others] or value
    return " ".join(
        f"{file['name']} ({counted(file['size'], 'byte')}, SHA-256 {file['sha256'][:8]})" for file in differ[:3]
    )
