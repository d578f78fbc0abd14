"""The files of an index.

index.json    the record, with the name of the folder of the data; replaced last, so that an index is old or new
index-data-*/ texts, row numbers, vectors, BM25 weights, static embeddings of queries, and token vectors; until all of
              them are written, the name starts with .informin-
"""

import hashlib
import logging
import os
import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from informin.errors import UsageError, counted
from informin.files import PREFIX, contents, named_in_errors, only_writer, read_json, write_json
from informin.frozen.bm25 import BM25, versions
from informin.frozen.index_entries import IndexRecord, parse_entries, parse_record
from informin.frozen.index_search import State
from informin.frozen.late_interaction import TokenVectors
from informin.frozen.static_queries import StaticQueries
from informin.texts import INDEX_DATA as DATA
from informin.texts import INDEX_RECORD as RECORD

logger = logging.getLogger(__name__)


TEXTS = "texts.jsonl"
# Of each file, one MiB is compared when an index is opened. To read all of many vectors would take seconds.
BLOCK = 4_096  # bytes
BLOCKS = 256


def raise_if_not_index(folder: str | Path, overwrite: bool) -> None:
    """Raise UsageError if a folder holds files that are not an index, or an index that must not be overwritten."""
    folder = Path(folder)
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise UsageError(
            f"{folder} is a file, or a link to no folder", option="output_dir", needed="a new folder, or an index"
        )
    others = [path.name for path in contents(folder)]
    if not others:
        return
    if not _has_index(folder):
        other = f"an {RECORD} of another program" if RECORD in others else others[0]
        found = f"{folder} is in use: it contains {other}"
        raise UsageError(found, option="output_dir", needed="a new folder, or an index")
    if not overwrite:
        fix = "Set `overwrite` to replace it."
        raise UsageError(f"{folder} already holds an index", option="output_dir", needed="a new folder", fix=fix)


def _has_index(folder: Path) -> bool:
    """Return whether a folder has the index.json of an index; a damaged one counts beside the data of an index."""
    record = folder / RECORD
    if not record.is_file():
        return False
    try:
        return "model_sha256" in read_json(record)
    except UsageError:
        return any(folder.glob(f"{DATA}*/{TEXTS}"))


def write_state(state: State, folder: str | Path, known: dict[str, str]) -> None:
    """Write an index to a folder, or replace the index in it. After a crash, it has the old one or the new one.

    Args:
        state: The index.
        folder: The folder.
        known: Maps the real path of a folder to the data that this index was loaded from or last saved as. It is
            updated once the new data are in place, before the old data are removed. An index in a folder that is not
            in the mapping is replaced.

    Raises:
        UsageError: The folder holds something else or data that are not `known`, or another process writes it.
        SaveError: A file could not be written.
    """
    folder, place = Path(folder), os.path.realpath(folder)
    with only_writer(folder), named_in_errors(folder):
        raise_if_not_index(folder, overwrite=True)
        if place in known:
            raise_if_other_data(folder, known[place])
        folder.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{DATA}", dir=folder))
        partial.chmod(folder.stat().st_mode)
        try:
            record = replace(_write_data(state, partial), data=partial.name.removeprefix(PREFIX))
            partial.rename(folder / record.data)
            write_json(folder / RECORD, asdict(record))
            known[place] = record.data
        finally:
            _remove_unused(folder)


def raise_if_other_data(folder: Path, known: str) -> None:
    """Raise UsageError if an index in a folder has other data, such as texts that another process added."""
    if (folder / RECORD).is_file() and read_record(folder).data != known:
        found = f"{folder} has changed since this index was loaded from it, and saving would undo the changes"
        raise UsageError(found, option="output_dir", fix="Load it and change it again, or save to a new folder.")


def _remove_unused(folder: Path) -> None:
    """Remove the data of older indexes, and of an index that could not be written as a whole.

    The data get a temporary name first. If the removal is interrupted, the next call removes the rest.
    """
    record = folder / RECORD
    used = read_json(record).get("data") if record.is_file() else None
    unused = [path.parent for path in folder.glob(f"{DATA}*/{TEXTS}") if path.parent.name != used]
    for data in unused:
        data.rename(folder / f"{PREFIX}{data.name}")
    for data in folder.glob(f"{PREFIX}{DATA}*"):
        shutil.rmtree(data)  # not ignoring errors: it may hold texts that were removed


def read_state(folder: str | Path) -> State:
    """Open an index, with its vectors and BM25 weights memory-mapped.

    If another process replaces the index meanwhile, the new one is opened.

    Raises:
        UsageError: The folder holds no index, or it is damaged.
    """
    folder = Path(folder)
    while True:
        record = read_record(folder)
        try:
            return _read_data(record, folder / record.data)
        except (OSError, ValueError, KeyError) as error:
            if read_record(folder).data == record.data:
                found = f"is {folder}, which is damaged ({error})"
                raise UsageError(
                    found, option="index", fix="Copy it again from its source, or build it again."
                ) from error


def read_record(folder: Path) -> IndexRecord:
    """Return the record of an index.

    Raises:
        UsageError: The folder holds no index, or index.json is damaged.
    """
    path = folder / RECORD
    if not path.is_file():
        raise UsageError(f"is {folder}, which has no {RECORD}", option="index", needed="an index")
    return parse_record(read_json(path), str(path))


def _write_data(state: State, data: Path) -> IndexRecord:
    """Write the files of the data, and return the record with their sizes."""
    lines = state.entries.lines()
    (data / TEXTS).write_text(lines, encoding="utf-8")
    np.save(data / "rows.npy", state.entries.rows)
    np.save(data / "vectors.npy", state.vectors)
    if state.record.smooth:
        np.save(data / "smoothed.npy", state.documents)
    if state.static_queries:
        state.static_queries.save(data)
    if state.tokens:
        state.tokens.save(data / "tokens")
    state.bm25.save(data / "words")
    files = {path.relative_to(data).as_posix(): path for path in sorted(data.rglob("*")) if path.is_file()}
    return replace(
        state.record,
        sizes={name: path.stat().st_size for name, path in files.items()},
        samples={name: sample_checksum(path) for name, path in files.items()},
        texts_sha256=hashlib.sha256(lines.encode()).hexdigest(),
    )


def _read_data(record: IndexRecord, data: Path) -> State:
    """Open the files of the data.

    Raises:
        OSError: A file is missing.
        ValueError: A file is damaged, or has more or fewer rows than another one.
    """
    check_sizes(record, data)
    check_samples(record, data)
    lines = (data / TEXTS).read_bytes()
    if record.texts_sha256 and hashlib.sha256(lines).hexdigest() != record.texts_sha256:
        raise ValueError(f"{TEXTS} has changed")
    entries = parse_entries(lines.decode(), np.load(data / "rows.npy"))
    vectors = np.load(data / "vectors.npy", mmap_mode="r")
    documents = np.load(data / "smoothed.npy", mmap_mode="r") if record.smooth else vectors
    static = StaticQueries.load(data) if record.queries == "static" else None
    tokens = TokenVectors.load(data / "tokens") if record.rerank else None
    bm25 = _read_bm25(record, data / "words", entries.texts)
    rows = {len(entries), len(vectors), len(documents), len(bm25)}
    rows |= {len(tokens)} if tokens else set()
    if len(rows) > 1:
        raise ValueError(f"its files have {' and '.join(map(str, sorted(rows)))} rows")
    check_sizes(record, data)  # again, because another process may have removed files meanwhile
    return State(replace(record, words=versions()), entries, vectors, documents, bm25, static, tokens)


def check_sizes(record: IndexRecord, data: Path) -> None:
    """Raise OSError if a file of the data is missing, or ValueError if its size is wrong."""
    for name, size in record.sizes.items():
        found = (data / name).stat().st_size
        if found != size:
            raise ValueError(f"{name} has {counted(found, 'byte')} instead of {size:,}")


def check_samples(record: IndexRecord, data: Path) -> None:
    """Raise ValueError if a file of the data has changed, such as vectors that are those of another model."""
    for name, checksum in record.samples.items():
        if sample_checksum(data / name) != checksum:
            raise ValueError(f"{name} has changed")


def sample_checksum(path: Path) -> str:
    """Return the SHA-256 of blocks that are spread evenly over a file; of all bytes if there is at most one MiB."""
    digest = hashlib.sha256()
    last = max(0, path.stat().st_size - BLOCK)
    with path.open("rb") as file:
        for start in np.linspace(0, last, BLOCKS).astype(int):
            file.seek(start)
            digest.update(file.read(BLOCK))
    return digest.hexdigest()


def _read_bm25(record: IndexRecord, folder: Path, texts: list[str]) -> BM25:
    """Open the words of the texts, or build them again if this environment splits texts in another way."""
    if record.words == versions():
        return BM25.load(folder, record.language)
    logger.info(
        "The index was written with other rules or versions of bm25s, PyStemmer or regex. Its words are built again."
    )
    return BM25.build(texts, record.language)
