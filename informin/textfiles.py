"""Reading text, tables and JSON lines, compressed or not, with errors that name file and line."""

import csv
import gzip
import io
import json
import logging
import lzma
import os
import re
import reprlib
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from informin.errors import UsageError, counted

logger = logging.getLogger(__name__)

COMPRESSIONS = (".gz", ".xz", ".zst")
# A TSV has no quoting: a field may begin with a quotation mark.
TABLES = {".csv": {"delimiter": ",", "strict": True}, ".tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE}}
MOST_NAMES = 20  # in a message
MOST_BYTES = 2**24  # of a line, with all its columns
MOST_CHARACTERS = 100_000  # of a sentence; encoders read up to 8,192 tokens, and all of it is tokenized first
SUFFIXES = (".txt", ".csv", ".tsv", ".jsonl", ".json", ".parquet")
COLUMN_NAME = re.compile(r"([\w.:/-]*[\w:]( [\w.:/-]*[\w:])?)?")  # one or two plain words, or none
QUOTES = (
    "Close every quotation mark that opens a field, and double those inside it; where they are only text, name the "
    "file .txt or .tsv."
)
TOO_MANY_FIELDS = {
    ".csv": "Put double quotes around a sentence that holds commas, name the file .txt if each line is a sentence",
    ".tsv": "Remove the tab inside a sentence",
}


def plain_suffix(path: Path) -> str:
    """The suffix that says what the file holds, without that of the compression: .csv for a.csv.gz."""
    inner = path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path
    return inner.suffix.lower()


def require_file(option: str, path: Path) -> None:
    """Raises UsageError where what an option names is not there, or is a folder, a pipe or a device."""
    if not os.path.exists(path):  # Path.exists would raise for a name that is too long
        raise UsageError(f"{option}: {path} does not exist.")
    if path.is_dir():
        raise UsageError(f"{option}: {path} is a folder; needed a file.")
    if not path.is_file():
        raise UsageError(f"{option}: {path} is a pipe or a device, which is read only once. Save it to a file first.")


def open_bytes(path: Path) -> BinaryIO:
    """The file's bytes, decompressed by its suffix."""
    suffix = path.suffix.lower()
    if suffix == ".zst":
        return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))
    return {".gz": gzip.open, ".xz": lzma.open}.get(suffix, open)(path, "rb")


def decoded_lines(path: Path, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    r"""The lines of a text file with their numbers, from 1, without the line end. A line ends at \n or \r\n alone.

    Raises:
        UsageError: the file is binary, damaged, or has a line that is not UTF-8 or longer than 16 MiB; file and line
            are named.
    """
    number = 0
    try:
        with open_bytes(path) as file:
            for number, raw in enumerate(iter(partial(file.readline, MOST_BYTES + 1), b""), start=1):
                if len(raw) > MOST_BYTES:
                    raise UsageError(f"{path}, line {number}: found more than {MOST_BYTES:,} bytes. Split the line.")
                if b"\0" in raw:
                    raise UsageError(
                        f"{path} is a binary file (a zero byte in line {number}). Needed text; if it is compressed, "
                        f"its name has to end in {', '.join(COMPRESSIONS)}."
                    )
                signed = number == 1 and encoding == "utf-8"  # may begin with a byte order mark
                yield number, raw.rstrip(b"\r\n").decode("utf-8-sig" if signed else encoding)
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}, line {number}: not UTF-8 (byte 0x{error.object[error.start]:02x} at column {error.start + 1}). "
            "Convert the file, for instance with iconv -f latin1 -t utf-8."
        ) from None
    except PermissionError as error:
        raise UsageError(f"{path} cannot be opened ({error.strerror}).") from None
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:  # OSError: gzip's and zstd's own
        raise UsageError(f"{path}: damaged or not a {path.suffix} file, after line {number} ({error}).") from None


def refuse_long(text: str, where: object, number: int | None = None) -> str:
    """The text; UsageError for more than 100,000 characters, which would take seconds to tokenize."""
    if len(text) > MOST_CHARACTERS:
        place = f"{where}, line {number}" if number else where
        raise UsageError(
            f"{place}: found a text of {len(text):,} characters that begins {text[:40]!r}; up to {MOST_CHARACTERS:,} "
            "are read. Split or cut it."
        )
    return text


def read_sentences(path: Path, text_column: str | None) -> Iterator[str]:
    """The sentences of one file, blank ones included: a line each of a text file, a cell each of a table.

    Args:
        text_column: the column of a CSV, TSV, JSONL or Parquet file; None for its `text` column or its only one.

    Raises:
        UsageError: as `decoded_lines`, and: no such column, a line that is not JSON, a cell that is not text, a
            sentence of more than 100,000 characters.
    """
    kind = plain_suffix(path)
    if kind in TABLES:
        return _read_table(path, text_column)
    if kind in (".jsonl", ".json"):
        return _read_json_lines(path, text_column)
    if kind == ".parquet":
        return _read_parquet(path, text_column)
    return (refuse_long(line, path, number) for number, line in decoded_lines(path))


def is_blank(text: str | None) -> bool:
    """Return whether a text is missing, empty or only whitespace. Blank sentences are neither trained on nor scored."""
    return not text or text.isspace()


def without_blanks(texts: Iterable[str]) -> Iterator[str]:
    """Return the texts that are not blank."""
    return (text for text in texts if not is_blank(text))


def read_part(path: Path, part: int, parts: int) -> Iterator[str]:
    """The lines of a plain text file that begin in one of equal parts of its bytes: of all parts, all lines, once each.

    Args:
        part: from 0.

    Raises:
        UsageError: as `decoded_lines`.
    """
    size = path.stat().st_size
    at, end = size * part // parts, size * (part + 1) // parts
    with path.open("rb") as file:
        if at:  # the line that this byte is in belongs to the part where it begins
            file.seek(at - 1)
            at += len(file.readline()) - 1
        while at < end and (raw := file.readline(MOST_BYTES)):
            try:
                line = raw.rstrip(b"\r\n").decode("utf-8" if at else "utf-8-sig")
            except UnicodeDecodeError:
                line = "\0"
            if "\0" in line or len(line) > MOST_CHARACTERS:
                deque(read_sentences(path, None), maxlen=0)  # which knows the line's number
            yield line
            at += len(raw)


def choose_column(columns: list[str], wanted: str | None, where: object) -> str:
    """The column to read: the one asked for, else `text`, else the only one."""
    if wanted is None:
        wanted = columns[0] if len(columns) == 1 else "text"
    if wanted not in columns:
        raise UsageError(
            f"{where}: no column {wanted!r}; found {shown(columns)}. Name one with `text_column`, or call it text."
        )
    if columns.count(wanted) > 1:
        raise UsageError(f"{where}: found {columns.count(wanted)} columns {wanted!r}; needed one. Rename the others.")
    return wanted


def shown(names: Iterable[str]) -> str:
    """Names of columns, or sentences, for a message: in one line, long ones cut."""
    printable = [repr(name)[1:-1] for name in names]
    cut = [name if len(name) <= 40 else f"{name[:37]}..." for name in printable[:MOST_NAMES]]
    return ", ".join([*cut, "..."] if printable[MOST_NAMES:] else cut) or "nothing"


def table_column(path: Path, text_column: str | None) -> str | None:
    """The column that `read_sentences` reads; None where the file is no table, or empty.

    Raises UsageError: as `table_rows`, and: no such column, or a first line that looks like sentences.
    """
    kind = plain_suffix(path)
    _, header = next(table_rows(path), (0, None)) if kind in TABLES else (0, None)
    if header is None:
        return None
    named = text_column in header or "text" in header
    if not named and not all(COLUMN_NAME.fullmatch(cell.strip()) for cell in header):
        table, delimiter = kind[1:].upper(), {".csv": "commas", ".tsv": "tabs"}[kind]
        raise UsageError(
            f"{path}: the first line looks like sentences, not like the names of columns (found {shown(header)}). A "
            f"{table} needs a header, fields parted by {delimiter}: put one on top (`text` if there is one column), or "
            "name the file .txt if each line is a sentence. If that line is the header, call its column `text` or, in "
            "training, name it with `text_column`."
        )
    return choose_column(header, text_column, path)


def table_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV or TSV file with the numbers of the lines they begin in, the header first.

    Rows of several lines, which a stray quotation mark can make too, are counted in a warning at the end.

    Raises:
        UsageError: as `decoded_lines`, and: a row that cannot be parsed, or with more fields than the header.
    """
    kind = plain_suffix(path)
    reader = csv.reader((line + "\n" for _, line in decoded_lines(path)), **TABLES[kind])
    width, end, joined = 0, 0, []
    try:
        for row in reader:
            begin, end = end + 1, reader.line_num
            if end > begin:
                joined.append(begin)
            width = width or len(row)  # blank lines may come before the header
            if any(row[width:]):  # empty fields are what some programs end every line with
                raise UsageError(
                    f"{path}, line {begin}: found {counted(len(row), 'field')}, but the header has {width}. "
                    f"{TOO_MANY_FIELDS[kind]}, or complete the header."
                )
            if width:
                yield begin, row
    except csv.Error as error:
        cause, cure = error, QUOTES if kind == ".csv" else "Shorten it."  # of a TSV only the length can be wrong
        if "new-line" in str(error):
            cause, cure = "a carriage return inside a line", "Remove it."
        raise UsageError(f"{path}, line {end + 1}: the row that begins here cannot be read ({cause}). {cure}") from None
    if joined:
        logger.warning(
            f"{path}: {counted(len(joined), 'row')} of more than one line, the first from line {joined[0]}. If that is "
            "not meant, a stray quotation mark joins them."
        )


def json_records(path: Path) -> Iterator[tuple[int, dict]]:
    """The objects of a JSON-lines file with their line numbers; an empty one for a blank line.

    Raises UsageError: as `decoded_lines`, and for a line that is not a JSON object.
    """
    for number, line in decoded_lines(path):
        try:
            record = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError) as error:  # ValueError: JSON's own, and a number of too many digits
            raise UsageError(f"{path}, line {number}: not JSON ({error}). Needed one JSON object a line.") from None
        if not isinstance(record, dict):
            raise UsageError(f"{path}, line {number}: found {line[:40]!r}; needed one JSON object a line.")
        yield number, record


def _read_table(path: Path, text_column: str | None) -> Iterator[str]:
    name = table_column(path, text_column)
    if name is None:
        return
    rows = table_rows(path)
    column = next(rows)[1].index(name)
    for number, row in rows:
        if row and len(row) <= column:
            raise UsageError(
                f"{path}, line {number}: found {counted(len(row), 'field')}, needed {column + 1} to reach column "
                f"{name!r}."
            )
        yield refuse_long(row[column], path, number) if row else ""


def _read_json_lines(path: Path, text_column: str | None) -> Iterator[str]:
    column = None
    for number, record in json_records(path):
        if record:
            column = choose_column(list(record), column or text_column, f"{path}, line {number}")
        yield as_text(record[column], path, number) if record else ""


def _read_parquet(path: Path, text_column: str | None) -> Iterator[str]:
    try:
        file = pq.ParquetFile(path)
        column = choose_column(file.schema_arrow.names, text_column, path)
        for batch in file.iter_batches(columns=[column]):
            for cell in batch.column(0).to_pylist():
                yield as_text(cell, path, None)
    except (pa.ArrowInvalid, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{path}: not a readable Parquet file ({error}).") from None


def as_text(cell: object, where: object, number: int | None) -> str:
    """A cell as a sentence; an empty one is a blank sentence. Raises UsageError where it holds something else."""
    place = f"{where}, line {number}" if number else where
    if cell is not None and not isinstance(cell, str):
        raise UsageError(
            f"{place}: the text column holds {reprlib.repr(cell)}; needed text. Name another with `text_column`."
        )
    try:
        (cell or "").encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can spell
        raise UsageError(f"{place}: {cell[error.start :][:20]!r} is not valid Unicode.") from None
    return refuse_long(cell or "", where, number)
