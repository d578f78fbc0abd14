"""Find the files of texts that a user names, also in folders, and check that files of embeddings exist."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from informin.arrowfiles import saved_files
from informin.errors import UsageError, counted, refuse_undecoded
from informin.otherformats import Format, format_by_name
from informin.textfiles import SUFFIXES, plain_suffix, require_file
from informin.textlines import COMPRESSIONS

logger = logging.getLogger(__name__)

VECTORS = (".npy", ".parquet", ".safetensors")  # suffixes of files of embeddings


def find_files(paths: list[str]) -> list[Path]:
    """Return the given files and those in the given folders, in a fixed order.

    Hidden files and folders inside a folder are skipped. Of a folder of datasets' `save_to_disk`, its Arrow files are
    returned.

    Raises:
        UsageError: A path does not exist, is not UTF-8 or is not a file, or a folder has no file of a known type.
    """
    files = []
    for path in map(Path, paths):
        inside = _files_in(path) if os.path.isdir(path) else [path]  # Path.is_dir raises for names that are too long
        for file in inside:
            require_file("`train_file`", file)
        files += inside
    return files


def _files_in(folder: Path) -> list[Path]:
    files, others = [], []
    for path in _walk(folder):
        if plain_suffix(path) in SUFFIXES:
            files.append(path)
        elif other := format_by_name(path):
            others.append((path, other))
    if not files:
        known = ", ".join(SUFFIXES + tuple(f".txt{c}" for c in COMPRESSIONS))
        found = f"; it has {_listed(others)}" if others else ""
        raise UsageError(
            f"is the folder {folder}, which has no training file{found}",
            option="train_file",
            needed=f"{known} files",
            fix=others[0][1].fix if others else None,
        )
    if others:
        logger.warning(f"{folder}: {_listed(others)} cannot be read and is skipped. {others[0][1].fix}")
    return sorted(files)


def _listed(others: list[tuple[Path, Format]]) -> str:
    path, other = sorted(others, key=lambda each: each[0])[0]
    more = f", and {counted(len(others) - 1, 'other file')} of this kind" if others[1:] else ""
    return f"{path.name} ({other.title}){more}"


def _walk(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError):
        raise UsageError(f"{error.filename} cannot be read ({error.strerror})", option="train_file")

    for path, folders, names in os.walk(folder, onerror=refuse):
        saved = saved_files(Path(path), "train_file")
        folders[:] = [] if saved is not None else [name for name in folders if not _is_hidden(name)]
        for name in names:
            refuse_undecoded(name, f"The name of the file {name} in {path}")
        yield from saved if saved is not None else (Path(path, name) for name in names if not _is_hidden(name))


def _is_hidden(name: str) -> bool:
    """Return whether a file or folder inside a folder is hidden, or written by an archiver or by Excel for itself."""
    return name.startswith((".", "~$")) or name == "__MACOSX"


def require_vectors(path: Path) -> None:
    """Raise UsageError if a file of embeddings does not exist or has another suffix than `VECTORS`."""
    needed = f"a file ending in {', '.join(VECTORS)}"
    if path.suffix.lower() not in VECTORS:
        raise UsageError(f"is {path}", option="embeddings", needed=needed)
    if not path.is_file():
        raise UsageError(f"{path} does not exist or is not a file", option="embeddings", needed=needed)
