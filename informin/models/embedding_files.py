"""The files of `embed_file`: the record of a finished file, and the folder of an unfinished one.

NAME.npy                    the embeddings, complete
NAME.npy.json               what they are, and their checksum
.NAME.npy.embedding/        until then:
    description.json        what they are
    rows.npy                all rows, some of them unfinished
    0, 4096, ...            the checksum of each finished chunk, named after its first row
"""

import hashlib
import logging
import os
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np

from informin.errors import UsageError
from informin.files import read_json, sha256, write_json
from informin.outputs import refuse_existing
from informin.schema import TEXT, Keys, integer, one_of, problem
from informin.temporary import PREFIX, allocate

logger = logging.getLogger(__name__)

KIND = "embeddings of informin"
RECORD = Keys(
    {
        "kind": one_of(KIND),
        "texts": TEXT,
        "encoder": TEXT,
        "rows": integer(1),
        "dimensions": integer(1),
        "sha256": TEXT,
    }
)
DESCRIPTION, ROWS = "description.json", "rows.npy"


def record_of(path: Path) -> Path:
    """Return the path of the record of a file."""
    return path.with_name(f"{path.name}.json")


def load_embedding_record(path: Path) -> dict | None:
    """Return the record of a file; None if there is none, or another file has its name."""
    with suppress(UsageError):
        record = read_json(record_of(path))
        return None if problem(record, RECORD) else record
    return None


def save_embedding_record(path: Path, values: dict) -> None:
    write_json(record_of(path), {"kind": KIND, **values})


def refuse_foreign(path: Path) -> None:
    """Raise UsageError if another file has the name of the record, or a link that of the embeddings.

    A link to embeddings is read, but a link to nothing would be replaced.
    """
    if os.path.lexists(record_of(path)) and load_embedding_record(path) is None:
        raise UsageError(
            f"{record_of(path)} exists and is not such a record",
            fix="Choose another output, or delete the file.",
        )
    if not path.exists():
        refuse_existing(path)


def is_intact(path: Path) -> bool:
    """Return whether a file matches the checksum in its record."""
    record = load_embedding_record(path)
    return record is not None and path.is_file() and sha256(path) == record["sha256"]


class Progress:
    """The folder of an unfinished file.

    Attributes:
        path: The file.
        folder: The folder next to it.
        rows: The array in the folder.
    """

    def __init__(self, path: Path, chunk: int, count: int):
        self.path, self.chunk, self.count = path, chunk, count
        self.folder = path.with_name(f".{path.name}.embedding")
        self.rows = self.folder / ROWS

    def starts(self) -> list[int]:
        """Return the first row of each chunk."""
        return list(range(0, self.count, self.chunk))

    def begin(self, description: dict, shape: tuple[int, int]) -> None:
        """Create the folder, or reuse one of the same texts and encoder.

        Raises:
            UsageError: The folder contains files that this program did not write.
            OSError: There is not enough space. The folder is removed, as after any error.
        """
        description = description | {"chunk": self.chunk, "dimensions": shape[1]}
        self._refuse_foreign()
        if self.folder.exists():
            if (found := self._problem(description, shape)) is None:
                return
            logger.warning(f"The unfinished embeddings in {self.folder} {found}. All texts are embedded again.")
            self._remove()
        try:
            self.folder.mkdir(parents=True)
            np.lib.format.open_memmap(self.rows, "w+", np.float32, shape).flush()
            allocate(self.rows)
            write_json(self.folder / DESCRIPTION, description)
        except BaseException:
            self._remove()
            raise

    def unfinished(self) -> list[int]:
        """Return the first rows of the chunks whose rows do not match a recorded checksum."""
        array, found = np.load(self.rows, mmap_mode="r"), []
        for start in self.starts():
            recorded = ""
            with suppress(OSError):
                recorded = (self.folder / str(start)).read_text(encoding="utf-8", errors="replace")
            found += [] if recorded == self._checksum(array, start) else [start]
        return found

    def save(self, start: int, block: np.ndarray) -> None:
        """Write the rows of a chunk and, after that, their checksum."""
        array = np.lib.format.open_memmap(self.rows, "r+")
        array[start : start + self.chunk] = block
        array.flush()
        (self.folder / str(start)).write_text(self._checksum(array, start), encoding="utf-8")

    def finish(self) -> None:
        """Move the array to its final path and remove the folder."""
        refuse_existing(self.path)
        self.rows.rename(self.path)
        self._remove()

    def _checksum(self, array: np.ndarray, start: int) -> str:
        return hashlib.sha256(np.ascontiguousarray(array[start : start + self.chunk]).data).hexdigest()

    def _refuse_foreign(self) -> None:
        """Raise UsageError if the folder is a link, or contains anything that this program does not write there."""
        found = None
        if self.folder.is_symlink() or (os.path.lexists(self.folder) and not self.folder.is_dir()):
            found = f"{self.folder} is not a folder"
        elif self.folder.is_dir() and (names := [path.name for path in self.folder.iterdir() if not _is_own(path)]):
            found = f"{self.folder} contains {names[0]!r:.60}, which this program did not write"
        if found:
            raise UsageError(found, fix="Move or delete it.")

    def _problem(self, description: dict, shape: tuple[int, int]) -> str | None:
        """Return why the folder cannot be used, as a phrase after its name; None if it can."""
        try:
            if read_json(self.folder / DESCRIPTION) != description:
                return "are of other texts or another model"
            array = np.load(self.rows, mmap_mode="r")
            return None if (array.shape, array.dtype) == (shape, np.float32) else "have another shape"
        except (OSError, ValueError, EOFError, UsageError):  # UsageError is a ValueError
            return "are damaged"

    def _remove(self) -> None:
        """Remove the folder, which contains only files of this program."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _is_own(path: Path) -> bool:
    """Return whether a file in the folder is not a link and has a name that this program uses."""
    if path.is_symlink():
        return False
    if path.name.startswith(PREFIX):
        return path.is_dir()
    return path.is_file() and (path.name in (DESCRIPTION, ROWS) or path.name.isdecimal())
