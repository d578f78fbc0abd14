"""Embed many texts into a file: sharded over processes, and resumed after an interruption."""

import hashlib
import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from informin.bars import hidden
from informin.distributed import any_process, rank, world_size
from informin.encoders.encoder import Encoder
from informin.errors import UsageError, counted, error_line
from informin.files import read_json, write_json
from informin.temporary import allocate

logger = logging.getLogger(__name__)

CHUNK = 4_096  # texts embedded and recorded at once
POLL = 0.2  # seconds between checks of the other processes' progress


def embed_file(encoder: Encoder, texts: Sequence[str], path: str | Path) -> np.ndarray:
    """Embed texts into a `.npy` file and return it as a memory map.

    Rows are written in chunks to `NAME.partial.npy`, and each finished chunk is recorded. After an interruption, even a
    SIGKILL, the same call continues with the unfinished chunks. Under `accelerate launch` every process makes the same
    call and embeds its share of the chunks.

    Args:
        encoder: An encoder with one pooling.
        texts: N texts.
        path: The file to write. An existing file is returned as it is if it holds the same texts and encoder.

    Returns:
        (N, d) float32, memory-mapped.

    Raises:
        UsageError: The file exists with other embeddings, or cannot be written.
    """
    return _embed_described(encoder, texts, Path(path), _description(encoder, texts))


def embed_cached(encoder: Encoder, texts: Sequence[str], folder: str | Path) -> np.ndarray:
    """Return `embed_file` of a file in a cache folder, which a checksum of the texts and the encoder names."""
    description = _description(encoder, texts)
    key = hashlib.sha256(json.dumps(description).encode()).hexdigest()[:16]
    return _embed_described(encoder, texts, Path(folder, f"{key}.npy"), description)


def _description(encoder: Encoder, texts: Sequence[str]) -> dict:
    return {"texts": _digest(texts), "encoder": encoder.sha256(), "rows": len(texts)}


def _embed_described(encoder: Encoder, texts: Sequence[str], path: Path, description: dict) -> np.ndarray:
    """Embed texts into a file; see `embed_file`."""
    partial, state = path.with_name(f"{path.stem}.partial.npy"), path.with_name(f"{path.stem}.progress")
    if path.exists():
        if not path.with_suffix(".json").is_file() or read_json(path.with_suffix(".json")) != description:
            raise UsageError(f"{path} exists and contains other embeddings", fix="Choose another file, or delete it.")
        return np.load(path, mmap_mode="r")
    try:
        if rank() == 0:
            _prepare(partial, state, description, (len(texts), encoder.dimensions))
        any_process(False)  # wait for the file
        _embed_missing(encoder, texts, partial, state)
        if rank() == 0:
            _await_others(state, len(texts))
            write_json(path.with_suffix(".json"), description)
            partial.rename(path)
            for file in state.iterdir():
                file.unlink()
            state.rmdir()
        any_process(False)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error_line(error)}", fix="Check the folder and its free space."
        ) from None
    return np.load(path, mmap_mode="r")


def _digest(texts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def _prepare(partial: Path, state: Path, description: dict, shape: tuple[int, int]) -> None:
    """Create the file and the folder with the progress, or keep those of the same texts and encoder."""
    same = state / "description.json"
    if partial.is_file() and same.is_file() and json.loads(same.read_text()) == description:
        return
    partial.parent.mkdir(parents=True, exist_ok=True)
    state.mkdir(exist_ok=True)
    for file in state.iterdir():
        file.unlink()
    np.lib.format.open_memmap(partial, "w+", np.float32, shape).flush()
    allocate(partial)
    write_json(same, description)


def _embed_missing(encoder: Encoder, texts: Sequence[str], partial: Path, state: Path) -> None:
    """Embed this process's chunks that are not recorded yet."""
    (pooler,) = encoder.poolers
    array = np.lib.format.open_memmap(partial, "r+")
    starts = range(0, len(texts), CHUNK)
    missing = [start for start in starts[rank() :: world_size()] if not (state / str(start)).exists()]
    rows = sum(len(texts[start : start + CHUNK]) for start in missing)
    done = len(starts[rank() :: world_size()]) - len(missing)
    if done:
        logger.info(
            f"Resuming: {counted(done, 'chunk')} of {len(starts[rank() :: world_size()])} are embedded already."
        )
    with tqdm(total=rows, desc="embed", unit=" texts", disable=hidden()) as bar:
        for start in missing:
            block = encoder(texts[start : start + CHUNK], bar.update)[pooler]
            if not np.isfinite(block).all():
                raise UsageError(f"{encoder.name} gives embeddings that are not finite", fix="Use another model.")
            array[start : start + CHUNK] = block
            array.flush()
            (state / str(start)).touch()


def _await_others(state: Path, rows: int) -> None:
    """Wait until every chunk is recorded."""
    while any(not (state / str(start)).exists() for start in range(0, rows, CHUNK)):
        time.sleep(POLL)
