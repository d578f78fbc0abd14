"""Embed many texts into a file: sharded over processes, and resumed after an interruption."""

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tqdm import tqdm

from informin.bars import hidden
from informin.distributed import first_only, gather_objects, on_first, rank, world_size
from informin.errors import WRITABLE, UsageError, counted
from informin.files import sha256
from informin.models.embedding_files import (
    Progress,
    is_intact,
    load_embedding_record,
    record_of,
    refuse_foreign,
    save_embedding_record,
)
from informin.models.model import Model
from informin.outputs import only_writer, writing

if TYPE_CHECKING:
    from informin.models.windows import Windows

logger = logging.getLogger(__name__)

CHUNK = 4_096  # texts embedded and recorded at once
FIX = f"{WRITABLE} Run the same command again to resume."


def embed_file(encoder: "Model | Windows", texts: Sequence[str], path: str | Path) -> np.ndarray:
    """Embed texts into a `.npy` file and return it as a memory map.

    The file appears when it is complete, next to the record `NAME.npy.json` with its checksum. Until then, the rows are
    in the folder `.NAME.npy.embedding`, with a checksum of each finished chunk. After an interruption, even a SIGKILL,
    the same call continues with the unfinished chunks. Under `accelerate launch` every process makes the same call and
    embeds its share of the chunks.

    Args:
        encoder: An encoder with one pooling.
        texts: N texts.
        path: The file to write. An existing file is returned as it is if it holds the same texts and encoder.

    Returns:
        (N, d) float32, memory-mapped.

    Raises:
        UsageError: The file exists with other embeddings or is damaged, it is being written by another process, or it
            cannot be written.
    """
    return _embed_described(encoder, texts, Path(path), _description(encoder, texts))


def embed_cached(encoder: Model, texts: Sequence[str], folder: str | Path) -> np.ndarray:
    """Return `embed_file` of a file in a cache folder, which a checksum of the texts and the encoder names.

    A damaged file is embedded again, with a warning.
    """
    description = _description(encoder, texts)
    key = hashlib.sha256(json.dumps(description).encode()).hexdigest()[:16]
    path = Path(folder, f"{key}.npy")
    if (path.exists() or record_of(path).exists()) and not is_intact(path):
        logger.warning(f"{path} is damaged. It is embedded again.")
        for file in (path, record_of(path)):
            file.unlink(missing_ok=True)
    return _embed_described(encoder, texts, path, description)


def _description(encoder: "Model | Windows", texts: Sequence[str]) -> dict:
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return {"texts": digest.hexdigest(), "encoder": encoder.sha256(), "rows": len(texts)}


def _embed_described(encoder: "Model | Windows", texts: Sequence[str], path: Path, description: dict) -> np.ndarray:
    """Embed texts into a file; see `embed_file`."""
    with first_only(only_writer(path)):
        if on_first(lambda: _is_finished(path, description)):
            return np.load(path, mmap_mode="r")
        progress = Progress(path, CHUNK, len(texts))
        on_first(lambda: _begin(progress, path, description, (len(texts), encoder.dimensions)))
        with writing(path, fix=FIX):
            _embed_missing(encoder, texts, progress)
        gather_objects(None)  # wait for the other processes
        on_first(lambda: _finish(progress, path, description))
    return np.load(path, mmap_mode="r")


def _is_finished(path: Path, description: dict) -> bool:
    """Return whether a file holds these embeddings. Raise UsageError if it holds anything else."""
    refuse_foreign(path)
    if not path.exists():
        return False
    record = load_embedding_record(path)
    if record is None or {name: record[name] for name in description} != description:
        raise UsageError(f"{path} exists and contains other embeddings", fix="Choose another file, or delete it.")
    if not is_intact(path):
        found = f"{path} is damaged: its checksum is not the one in {record_of(path).name}"
        raise UsageError(found, fix="Delete it and run the same command again.")
    return True


def _begin(progress: Progress, path: Path, description: dict, shape: tuple[int, int]) -> None:
    with writing(path, fix=FIX):
        progress.begin(description, shape)


def _finish(progress: Progress, path: Path, description: dict) -> None:
    """Write the record and move the array to its place."""
    with writing(path, fix=FIX):
        if missing := progress.unfinished():  # another process wrote to another disk
            raise UsageError(
                f"{progress.folder} lacks {counted(len(missing), 'chunk')} of other processes",
                fix="Use a folder that all machines share, and run the same command again.",
            )
        dimensions = np.load(progress.rows, mmap_mode="r").shape[1]
        save_embedding_record(path, description | {"dimensions": dimensions, "sha256": sha256(progress.rows)})
        progress.finish()


def _embed_missing(encoder: "Model | Windows", texts: Sequence[str], progress: Progress) -> None:
    """Embed this process's chunks that are not recorded yet."""
    (pooler,) = encoder.poolers
    own = progress.starts()[rank() :: world_size()]
    missing = [start for start in progress.unfinished() if start in set(own)]
    rows = sum(len(texts[start : start + CHUNK]) for start in missing)
    if done := len(own) - len(missing):
        logger.info(f"Resuming: {counted(done, 'chunk')} of {len(own)} are embedded already.")
    with tqdm(total=rows, desc="embed", unit=" texts", disable=hidden()) as bar:
        for start in missing:
            block = encoder(texts[start : start + CHUNK], bar.update)[pooler]
            if not np.isfinite(block).all():
                raise UsageError(f"{encoder.name} gives embeddings that are not finite", fix="Use another model.")
            progress.save(start, block)
