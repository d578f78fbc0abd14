"""Find SentEval's data in a folder, in $SENTEVAL_DATA or on the Hub, and unpack its archive safely."""

import bz2
import gzip
import io
import lzma
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, Any

from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

from informin.errors import UsageError, counted
from informin.evaluation.senteval import STSB_DEV
from informin.files import hub_problem, set_usual_modes
from informin.outputs import new_folder

HUB_DATA = "princeton-nlp/datasets-for-simcse"
HUB_SENTEVAL = "senteval.tar"
HUB_ERRORS = (HTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError)  # HTTPError: lost connections too
MOST_BYTES, MOST_MEMBERS = 4 * 2**30, 100_000  # of an archive; SentEval's has 0.3 GiB
DELETE = "Delete it and try again to download a new copy."
SENTEVAL_INSTEAD = "`senteval_dir` FOLDER (SentEval's data/downstream), or set SENTEVAL_DATA to it"


def senteval_folder(given: str | None, instead: str = SENTEVAL_INSTEAD) -> Path:
    """Return SentEval's `data/downstream`: the given folder, $SENTEVAL_DATA, or a download from the Hub.

    Args:
        instead: What to do without the Hub. Completes the error message "Without the Hub, give ...".

    Raises:
        UsageError: The data cannot be downloaded or unpacked.
    """
    named = given or os.environ.get("SENTEVAL_DATA")
    if named:
        return Path(named)
    archive = hub_file(HUB_SENTEVAL, instead)
    folder = Path(constants.HF_HOME) / "informin-cl" / archive.resolve().name
    if not folder.is_dir():
        unpack(archive, folder)
    dev = next((p for p in folder.rglob("sts-dev.csv") if p.as_posix().endswith(STSB_DEV)), None)
    if dev is None:
        raise UsageError(f"{archive} does not contain {STSB_DEV}", fix=DELETE)
    return dev.parents[2]


def hub_file(name: str, instead: str) -> Path:
    """Download a file of the Hub data set with SentEval and the papers' sentences, and return its path in the cache.

    Args:
        instead: As in `senteval_folder`.

    Raises:
        UsageError: The file cannot be downloaded.
    """
    try:
        return Path(hf_hub_download(HUB_DATA, name, repo_type="dataset"))
    except HUB_ERRORS as error:
        raise UsageError(
            f"{name} cannot be downloaded from the Hub data set {HUB_DATA}: {hub_problem(error)}",
            fix=f"Without the Hub, give {instead}.",
        ) from None


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar file. No member is written outside `folder`, and `folder` appears only once it is complete.

    Raises:
        UsageError: The archive is damaged or too large, a member points outside, or the disk is full.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(folder) as new:
        try:
            with _decompressed(archive) as file, tarfile.open(fileobj=_Bounded(file), mode="r:") as tar:
                _refuse_large(tar)
                _extract(tar, new)
            set_usual_modes(new)
        except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise UsageError(f"{archive} cannot be unpacked ({error})", fix=DELETE) from None
        except OSError as error:  # a full disk, for example
            raise UsageError(
                f"{archive} cannot be unpacked in {folder.parent} ({error})", fix="Check the folder and its free space."
            ) from None


def _extract(tar: tarfile.TarFile, folder: Path) -> None:
    """Write files and folders. Raise TarError for a link, a device, or a member outside.

    `extractall(filter="data")` does this as well, but it is new in Python 3.10.12 and 3.11.4.
    """
    for member in tar:
        parts = [part for part in PurePosixPath(member.name).parts if part != "/"]
        path = folder.joinpath(*parts)
        if ".." in parts or not path.resolve().is_relative_to(folder.resolve()):
            raise tarfile.TarError(f"{member.name!r} is outside")
        file = tar.extractfile(member) if member.isreg() else None
        if file is None and not member.isdir():
            raise tarfile.TarError(f"{member.name!r} is a link or a device")
        (path.parent if file else path).mkdir(parents=True, exist_ok=True)
        if file:
            with file, open(path, "wb") as target:
                shutil.copyfileobj(file, target)


def _decompressed(archive: Path) -> IO[bytes]:
    """Open an archive for reading, decompressed according to its first bytes."""
    with open(archive, "rb") as file:
        head = file.read(3)
    openers: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b\x08": gzip.open, b"BZh": bz2.open, b"\xfd7z": lzma.open}
    return openers.get(head, open)(archive, "rb")


class _Bounded(io.BufferedIOBase):
    """The first MOST_BYTES of a file. A few kilobytes can decompress to any size, even while tarfile reads a header."""

    def __init__(self, file: IO[bytes]):
        self.file = file

    def tell(self) -> int:
        return self.file.tell()

    def read(self, size: int | None = -1) -> bytes:
        size = MOST_BYTES if size is None or size < 0 else size
        self.check(self.tell() + size)
        return self.file.read(size)

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        self.check(position)
        return self.file.seek(position, whence)

    def check(self, position: int) -> None:
        if position > MOST_BYTES:
            raise tarfile.ReadError(f"more than {MOST_BYTES / 2**30:.1f} GiB")


def _refuse_large(tar: tarfile.TarFile) -> None:
    size = 0
    for number, member in enumerate(tar, start=1):  # moving to the next member skips the data
        size += member.size
        if size > MOST_BYTES or number > MOST_MEMBERS:
            raise tarfile.ReadError(
                f"{size / 2**30:,.1f} GiB in {counted(number, 'member')}; the limit is {MOST_BYTES / 2**30:.1f} GiB in "
                f"{MOST_MEMBERS:,} members"
            )
