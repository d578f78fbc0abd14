"""Embed texts, in memory or into a file that is resumed after an interruption."""

import hashlib
import logging
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from typing_extensions import Unpack

from informin.distributed import first_only, gather_objects, on_first, rank, world_size
from informin.errors import UsageError, counted
from informin.files import named_in_errors, only_writer, read_json, sha256, write_json
from informin.model.checksums import model_sha256
from informin.model.embedding import bar_of_texts, encode, encode_in_shares, note_truncated, width_of
from informin.model.open import Loading, load_model
from informin.options import checks_options
from informin.texts import as_texts

logger = logging.getLogger(__name__)


KIND = "embeddings of informin"
RECORDED_AT_ONCE = 4_096  # texts embedded and recorded at once


def embed_file(
    model: SentenceTransformer,
    texts: Sequence[str],
    path: str | Path,
    *,
    side: str | None = None,
    prompt: str | None = None,
    batch_size: int = 64,
    overwrite: bool = False,
) -> np.ndarray:
    """Embed texts into a `.npy` file, and return it as a memory map.

    The file appears when it is complete, next to the record `NAME.npy.json` with its checksum. After an interruption,
    even a SIGKILL, the same call continues with the unfinished chunks. Under `accelerate launch` every process makes
    the same call and embeds its share of the chunks.

    Args:
        model: The model.
        texts: N texts.
        path: The file to write. An existing file is returned as it is if it holds the same texts and model.
        side, prompt, batch_size: See `informin.model.embedding.encode_in_shares`.
        overwrite: Whether to replace a file of other embeddings that this function wrote.

    Returns:
        (N, d) float32, memory-mapped.

    Raises:
        UsageError: The file exists with other embeddings or is damaged, or another process writes it.
        SaveError: The file cannot be written. The same call resumes.
    """
    path, texts = Path(path), as_texts(texts)
    description = describe(model, texts, side, prompt)
    with first_only(only_writer(path)):
        if on_first(lambda: is_finished(path, description, overwrite)):
            return np.load(path, mmap_mode="r")
        note_truncated(model, texts, prompt)
        folder = path.with_name(f".{path.name}.embedding")
        with named_in_errors(path):
            on_first(lambda: _begin(folder, description))
        chunks = range(0, len(texts), RECORDED_AT_ONCE)
        missing = [start for start in list(chunks)[rank() :: world_size()] if not _is_done(folder, start)]
        total = sum(len(texts[start : start + RECORDED_AT_ONCE]) for start in missing)
        with bar_of_texts(model, total) as model:
            for start in missing:
                block = encode(model, texts[start : start + RECORDED_AT_ONCE], side, prompt, batch_size)
                with named_in_errors(path):
                    _write_rows(folder / "rows.npy", start, block)
                    rows = np.load(folder / "rows.npy", mmap_mode="r")
                    (folder / str(start)).write_text(_checksum(rows, start), encoding="utf-8")
        gather_objects(None)  # wait for the other processes
        with named_in_errors(path):
            on_first(lambda: _finish(folder, path, description, chunks))
    return np.load(path, mmap_mode="r")


def describe(model: SentenceTransformer, texts: Sequence[str], side: str | None, prompt: str | None) -> dict:
    """Return what determines the embeddings in a file."""
    encoder = hashlib.sha256(f"{model_sha256(model, prompt)} {side}".encode()).hexdigest()
    shape = {"rows": len(texts), "dimensions": width_of(model)}
    return {"kind": KIND, "texts": texts_sha256(texts), "encoder": encoder} | shape


def texts_sha256(texts: Sequence[str]) -> str:
    """Return the checksum of texts in their order."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def raise_if_other_texts(path: Path, texts: Sequence[str]) -> None:
    """Raise UsageError if the record of a file says that its embeddings are of other texts.

    A file without a record is not checked, nor one that was written again without it.
    """
    record = _record(path)
    if record and record["texts"] != texts_sha256(texts) and _is_intact(path):
        raise UsageError(
            f"is {path}, whose record {record_of(path).name} says that it was embedded from other texts",
            option="embeddings",
            fix="The texts or their order have changed since then. Run `informin embed` again, or give the old texts.",
        )


def record_of(path: Path) -> Path:
    """Return the path of the record of a file."""
    return path.with_name(f"{path.name}.json")


def is_finished(path: Path, description: dict, overwrite: bool = False) -> bool:
    """Return whether a file holds these embeddings. Raise UsageError if it holds anything else.

    With `overwrite`, a file of other embeddings that has a record is not an error, and is replaced once the new one is
    complete.
    """
    record = _record(path)
    if record_of(path).exists() and not record:
        raise UsageError(f"{record_of(path)} exists and is not such a record", fix="Choose another output.")
    if not path.exists():
        return False
    if {name: record.get(name) for name in description} != description:
        if overwrite and record:
            return False
        raise UsageError(
            f"{path} exists and contains other embeddings",
            fix="Choose another file, or replace an output of the same command with `overwrite_output_dir`.",
        )
    if not _is_intact(path):
        if overwrite:
            return False
        raise UsageError(
            f"{path} is damaged: its checksum is not that of its record",
            fix="Delete it, or replace it with `overwrite_output_dir`.",
        )
    return True


def _record(path: Path) -> dict[str, Any]:
    """Return the record of a file; empty if there is none, or another file has its name."""
    with suppress(OSError, ValueError):
        record = read_json(record_of(path))
        return record if isinstance(record, dict) and record.get("kind") == KIND else {}
    return {}


def _is_intact(path: Path) -> bool:
    return _record(path).get("sha256") == sha256(path)


def _begin(folder: Path, description: dict) -> None:
    """Create the folder of an unfinished file, or reuse one of the same texts and model."""
    with suppress(OSError, ValueError):
        rows = np.load(folder / "rows.npy", mmap_mode="r")
        shape = (description["rows"], description["dimensions"])
        if read_json(folder / "description.json") == description and rows.shape == shape:
            return
    if folder.exists():
        logger.warning(f"The unfinished embeddings in {folder} are of other texts or another model.")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    shape = (description["rows"], description["dimensions"])
    np.lib.format.open_memmap(folder / "rows.npy", "w+", np.float32, shape).flush()
    write_json(folder / "description.json", description)


def _write_rows(path: Path, start: int, block: np.ndarray) -> None:
    """Write some rows of a .npy file. If the disk is full, writing to a memory map would kill the process."""
    rows = np.load(path, mmap_mode="r")
    with path.open("r+b") as file:
        file.seek(rows.offset + start * rows.strides[0])
        file.write(np.ascontiguousarray(block, rows.dtype).data)


def _is_done(folder: Path, start: int) -> bool:
    """Return whether the rows of a chunk match their recorded checksum."""
    with suppress(OSError):
        recorded = (folder / str(start)).read_text(encoding="utf-8", errors="replace")
        return recorded == _checksum(np.load(folder / "rows.npy", mmap_mode="r"), start)
    return False


def _checksum(rows: np.ndarray, start: int) -> str:
    return hashlib.sha256(np.ascontiguousarray(rows[start : start + RECORDED_AT_ONCE]).data).hexdigest()


def _finish(folder: Path, path: Path, description: dict, chunks: Sequence[int]) -> None:
    """Write the record and move the rows to their place."""
    if missing := [start for start in chunks if not _is_done(folder, start)]:  # written to another disk
        raise UsageError(
            f"{folder} lacks {counted(len(missing), 'chunk')} of other processes",
            fix="Use a folder that all machines share, and run the same command again.",
        )
    write_json(record_of(path), description | {"sha256": sha256(folder / "rows.npy")})
    (folder / "rows.npy").rename(path)
    shutil.rmtree(folder)


SIDES = ("query", "document", None)


@checks_options
def embed(
    model: str | Path | SentenceTransformer,
    texts: Iterable[str],
    output: str | Path | None = None,
    *,
    side: str | None = None,
    prompt: str | None = None,
    batch_size: int = 64,
    overwrite_output_dir: bool = False,
    pooler: str = "auto",
    **loading: Unpack[Loading],
) -> np.ndarray:
    """Embed texts. Texts that are too long for the model are truncated, which is logged once.

    In a distributed run, all processes call this function. Each embeds a share, and gets all embeddings.

    Args:
        model: Hub id, folder, or SentenceTransformer. The options about loading concern a name or folder.
        texts: N texts: a list, or another iterable of strings.
        output: A .npy file to write. It appears once it is complete. After an interruption, the same call resumes.
        overwrite_output_dir: Whether to replace a file of other embeddings that this function wrote to `output`.
        side: `query` or `document`: embed with the prompt or route that the model has for them. Default: the model's
            `encode`.
        prompt: Prompt prepended to each text, instead of the stored prompt; an empty string for none.
        batch_size: Texts per forward pass.
        pooler, loading: Options of `informin.load_model`.

    Returns:
        (N, d) float32; with `output`, a memory map of the file.

    Raises:
        UsageError: The model, the texts or the name of the file cannot be used, or the file has other embeddings.
    """
    texts = as_texts(texts)
    if side not in SIDES:
        raise UsageError(f"is {side}", option="side", needed="query, document or None")
    if output is not None and Path(output).suffix != ".npy":
        raise UsageError(f"is {output}", option="output", needed="a name ending in .npy")
    st = load_model(model, pooler=pooler, **loading)
    if output is None:
        return encode_in_shares(st, texts, side=side, prompt=prompt, batch_size=batch_size)
    return embed_file(
        st, texts, output, side=side, prompt=prompt, batch_size=batch_size, overwrite=overwrite_output_dir
    )
