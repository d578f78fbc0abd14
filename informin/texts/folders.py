"""Find the files of texts in folders, and tell their formats by their suffixes."""

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from informin.errors import UsageError, counted

logger = logging.getLogger(__name__)

TABLES = (".csv", ".tsv", ".jsonl")
COMPRESSED = (".txt", *TABLES)  # formats that can be compressed with gzip
SUFFIXES = (*COMPRESSED, ".parquet", ".arrow")
NEEDED = "a file ending in .txt, .csv, .tsv or .jsonl (plain or .gz), .parquet or .arrow"


def find_files(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """Return files, and the files of texts in folders and their subfolders, in a fixed order.

    Hidden files and folders inside a folder are skipped, and files with other suffixes, of which a message tells.
    Links are followed, but no folder is read twice.

    Raises:
        UsageError: A path does not exist, a file has an unsupported suffix, or a folder has no file of texts.
        OSError: A subfolder cannot be read.
    """
    files: list[Path] = []
    for path in [paths] if isinstance(paths, str | Path) else paths:
        path = Path(os.path.expanduser(path))
        if path.is_dir():
            files += _files_of_texts(path)
        elif not path.exists():
            raise UsageError(f"{path} does not exist", option="train_file")
        elif format_of(path) not in SUFFIXES:
            raise UsageError(f"{path} has an unsupported suffix", option="train_file", needed=NEEDED)
        else:
            files.append(path)
    return files


def format_of(path: Path) -> str:
    """Return the suffix that tells the format: .csv for a.csv.gz."""
    suffix = path.suffix.lower()
    inner = path.with_suffix("").suffix.lower()
    return inner if suffix == ".gz" and inner in COMPRESSED else suffix


def _files_of_texts(folder: Path) -> list[Path]:
    every = sorted(_visible_files(folder))
    files = [file for file in every if format_of(file) in SUFFIXES]
    others = [file for file in every if format_of(file) not in SUFFIXES]
    if not files:
        raise UsageError(f"{folder} has no file of texts", option="train_file", needed=NEEDED)
    if others:
        logger.info(
            f"{folder}: {counted(len(others), 'file')} with an unsupported suffix skipped, such as {others[0]}."
        )
    return files


def _visible_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of its subfolders, each of which is entered once, whatever links there are."""
    entered: set[str] = set()
    for parent, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
        real = os.path.realpath(parent)
        folders[:] = [] if real in entered else sorted(name for name in folders if not name.startswith("."))
        if real not in entered:
            yield from (Path(parent, name) for name in names if not name.startswith("."))
        entered.add(real)


def _raise(error: OSError) -> None:
    raise error
