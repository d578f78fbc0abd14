"""Read the lines of a text file, compressed or not. Errors name the file and the line."""

import codecs
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, cast

import pyarrow as pa

from informin.errors import UsageError
from informin.otherformats import format_by_name, format_of

COMPRESSIONS = (".gz", ".xz", ".zst")
MOST_BYTES = 2**24  # of a line, with all its columns
MARK = codecs.BOM_UTF8
WIDE = {  # byte order marks of encodings with several bytes per character; that of UTF-32 begins with that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading bytes, decompressed according to its suffix."""
    suffix = path.suffix.lower()
    if suffix == ".zst":
        return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))
    if suffix == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    return lzma.open(path, "rb") if suffix == ".xz" else open(path, "rb")


def decoded_lines(path: Path, encoding: str = "utf-8", most: int = MOST_BYTES) -> Iterator[tuple[int, str]]:
    r"""Yield the lines of a text file with their numbers, from 1, without the line ending.

    Only \n and \r\n end a line, or \r in a file whose first line has no \n. Byte order marks at the start of a line are
    removed. A file that begins with the byte order mark of UTF-16 or UTF-32 is decoded accordingly.

    Args:
        encoding: Encoding of a file without the mark of another one.
        most: Maximum number of bytes of a line.

    Raises:
        UsageError: The file is binary or damaged, became shorter while it was read, or has a line that is not UTF-8 or
            is too long. The message names the file and the line.
    """
    number = 0
    try:
        with open_bytes(path) as file:
            size = _size(path, file)
            first = file.readline(most + 1)
            if found := format_of(path, first):
                raise UsageError(f"{path} is {found.title}", needed="text", fix=found.fix)
            if wide := wide_encoding(first):
                lines = _recoded(path, wide, most)
            elif has_old_line_ends(first):
                lines = _with_newlines(path, most)
            else:
                lines = chain([first] if first else [], iter(partial(file.readline, most + 1), b""))
            marked = encoding == "utf-8"
            for number, raw in enumerate(lines, start=1):
                if len(raw) > most:
                    raise UsageError(
                        f"{path}, line {number}: found more than {most:,} bytes",
                        needed=f"up to {most:,} bytes per line",
                        fix="Split the line.",
                    )
                if b"\0" in raw:
                    raise _binary(path, number)
                if marked and raw[0] == MARK[0]:
                    raw = without_marks(raw)
                yield number, raw.rstrip(b"\r\n").decode(encoding)
            if size is not None and _size(path, file) < size:  # type: ignore[operator]
                raise became_shorter(path, number)
    except UnicodeDecodeError as error:
        raise _not_decoded(path, number, error) from None
    except PermissionError as error:
        raise UsageError(f"{path} cannot be opened ({error.strerror})", fix="Check its permissions.") from None
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:  # OSError: gzip's and zstd's own
        raise UsageError(
            f"{path} is damaged or not a {path.suffix} file, after line {number} ({error})",
            fix="Download or copy the file again.",
        ) from None


def wide_encoding(start: bytes) -> str | None:
    """Return utf-16 or utf-32 if these first bytes of a file are its byte order mark."""
    return next((encoding for mark, encoding in WIDE.items() if start.startswith(mark)), None)


def has_old_line_ends(first: bytes) -> bool:
    r"""Return whether the lines of a file end with \r alone, according to its first line: it has \r, and no \n."""
    return b"\r" in first[:-1] and not first.endswith(b"\n")


def without_marks(raw: bytes) -> bytes:
    """Return a line without byte order marks at its start. Concatenated files have some inside."""
    while raw.startswith(MARK):
        raw = raw[len(MARK) :]
    return raw


def became_shorter(path: Path, number: int | None = None) -> UsageError:
    """Return the error about a file that another program truncated while it was read."""
    return UsageError(
        f"{path} became shorter while it was read{f', after line {number}' if number else ''}",
        fix="Wait until no program writes to it, and run the command again.",
    )


def _size(path: Path, file: IO[bytes]) -> int | None:
    """Return the size of an open file; None if it is compressed, because a truncated file is then damaged."""
    return None if path.suffix.lower() in COMPRESSIONS else os.fstat(file.fileno()).st_size


def _recoded(path: Path, encoding: str, most: int) -> Iterator[bytes]:
    """Yield the lines of a file in another encoding as UTF-8."""
    for newline in ("\n", None):  # None: \r ends a line, too
        with io.TextIOWrapper(open_bytes(path), encoding=encoding, newline=newline) as file:
            first = file.readline(most + 1)
            if newline and has_old_line_ends(first.encode()):
                continue
            rest = iter(partial(file.readline, most + 1), "")
            yield from (line.encode() for line in chain([first] if first else [], rest))
            return


def _with_newlines(path: Path, most: int) -> Iterator[bytes]:
    r"""Yield the lines of a file in which also \r ends a line."""
    with io.TextIOWrapper(open_bytes(path), encoding="latin-1", newline=None) as file:  # keeps all bytes
        yield from (line.encode("latin-1") for line in iter(partial(file.readline, most + 1), ""))


def _binary(path: Path, number: int) -> UsageError:
    if found := format_by_name(path):
        return UsageError(f"{path} is {found.title}", needed="text", fix=found.fix)
    return UsageError(
        f"{path} is a binary file (line {number} contains a zero byte)",
        needed="text",
        fix=f"If it is compressed, its name must end in {', '.join(COMPRESSIONS)}. If it is UTF-16, convert it with "
        "iconv -f utf-16le -t utf-8.",
    )


def _not_decoded(path: Path, number: int, error: UnicodeDecodeError) -> UsageError:
    if not error.encoding.startswith("utf-8"):
        found = f"{path}, line {number + 1}: not {error.encoding.upper()}, which the first bytes of the file announce"
        return UsageError(found, fix="Save the file as UTF-8.")
    return UsageError(
        f"{path}, line {number}: not UTF-8 (byte 0x{error.object[error.start]:02x} at column {error.start + 1})",
        fix="Convert the file, for instance with iconv -f latin1 -t utf-8.",
    )
