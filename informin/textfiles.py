"""Read text files, tables and JSON Lines, compressed or not. Errors name the file and the line."""

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
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from informin.errors import UsageError, counted

logger = logging.getLogger(__name__)

COMPRESSIONS = (".gz", ".xz", ".zst")
# A TSV has no quoting: a field may begin with a quotation mark.
TABLES: dict[str, dict[str, Any]] = {
    ".csv": {"delimiter": ",", "strict": True},
    ".tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}
MOST_NAMES = 20  # in a message
MOST_BYTES = 2**24  # of a line, with all its columns
MOST_CHARACTERS = 100_000  # of a sentence; encoders use up to 8,192 tokens, but the whole sentence is tokenized
SUFFIXES = (".txt", ".csv", ".tsv", ".jsonl", ".json", ".parquet")
ONE_OBJECT = "one JSON object per line"
COLUMN_NAME = re.compile(r"([\w.:/-]*[\w:]( [\w.:/-]*[\w:])?)?")  # up to two plain words
QUOTES = (
    "Close every quotation mark that opens a field, and double those inside it; where they are only text, name the "
    "file .txt or .tsv."
)
TOO_MANY_FIELDS = {
    ".csv": "Put double quotes around a sentence that holds commas, name the file .txt if each line is a sentence",
    ".tsv": "Remove the tab inside a sentence",
}


def plain_suffix(path: Path) -> str:
    """Return the suffix of a file without that of its compression: .csv for a.csv.gz."""
    inner = path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path
    return inner.suffix.lower()


def require_file(option: str, path: Path) -> None:
    """Raise UsageError if the path of an option does not exist, or is a folder, a pipe or a device."""
    if not os.path.exists(path):  # Path.exists would raise for a name that is too long
        raise UsageError(f"{option}: {path} does not exist", fix="Check the path.")
    if path.is_dir():
        raise UsageError(f"{option}: {path} is a folder", needed="a file")
    if not path.is_file():
        raise UsageError(
            f"{option}: {path} is a pipe or a device, which can be read only once",
            needed="a file",
            fix="Save its content to a file.",
        )


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading bytes, decompressed according to its suffix."""
    suffix = path.suffix.lower()
    if suffix == ".zst":
        return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))
    if suffix == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    return lzma.open(path, "rb") if suffix == ".xz" else open(path, "rb")


def decoded_lines(path: Path, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    r"""Yield the lines of a text file with their numbers, from 1, without the line ending. Only \n and \r\n end a line.

    Raises:
        UsageError: The file is binary or damaged, or a line is not UTF-8 or longer than 16 MiB. The message names the
            file and the line.
    """
    number = 0
    try:
        with open_bytes(path) as file:
            for number, raw in enumerate(iter(partial(file.readline, MOST_BYTES + 1), b""), start=1):
                if len(raw) > MOST_BYTES:
                    raise UsageError(
                        f"{path}, line {number}: found more than {MOST_BYTES:,} bytes",
                        needed=f"up to {MOST_BYTES:,} bytes per line",
                        fix="Split the line.",
                    )
                if b"\0" in raw:
                    raise UsageError(
                        f"{path} is a binary file (line {number} contains a zero byte)",
                        needed="text",
                        fix=f"If it is compressed, its name must end in {', '.join(COMPRESSIONS)}.",
                    )
                signed = number == 1 and encoding == "utf-8"  # may begin with a byte order mark
                yield number, raw.rstrip(b"\r\n").decode("utf-8-sig" if signed else encoding)
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}, line {number}: not UTF-8 (byte 0x{error.object[error.start]:02x} at column {error.start + 1})",
            fix="Convert the file, for instance with iconv -f latin1 -t utf-8.",
        ) from None
    except PermissionError as error:
        raise UsageError(f"{path} cannot be opened ({error.strerror})", fix="Check its permissions.") from None
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:  # OSError: gzip's and zstd's own
        raise UsageError(
            f"{path} is damaged or not a {path.suffix} file, after line {number} ({error})",
            fix="Download or copy the file again.",
        ) from None


def refuse_long(text: str, where: object, number: int | None = None) -> str:
    """Return the text. Raise UsageError for more than 100,000 characters, which take seconds to tokenize."""
    if len(text) > MOST_CHARACTERS:
        place = f"{where}, line {number}" if number else where
        raise UsageError(
            f"{place}: found a text of {len(text):,} characters that begins with {text[:40]!r}",
            needed=f"up to {MOST_CHARACTERS:,} characters",
            fix="Split or shorten it.",
        )
    return text


def read_sentences(path: Path, text_column: str | None) -> Iterator[str]:
    """Yield the sentences of a file, including blank ones: one per line of a text file, one per row of a table.

    Args:
        text_column: Column of a CSV, TSV, JSONL or Parquet file. Default: the `text` column, or the only column.

    Raises:
        UsageError: As `decoded_lines`. Also for a missing column, a line that is not JSON, a cell that is not text, or
            a sentence of more than 100,000 characters.
    """
    kind = plain_suffix(path)
    if kind in TABLES:
        return _read_table(path, text_column)
    if kind in (".jsonl", ".json"):
        return _read_json_lines(path, text_column)
    if kind == ".parquet":
        return _read_parquet(path, text_column)
    return (refuse_long(line, path, number) for number, line in decoded_lines(path))


def read_prompted(path: Path, text_column: str | None, prompt_column: str | None) -> Iterator[str]:
    """Yield the sentences of a file, each after the prompt in its row. Blank sentences stay blank.

    Args:
        text_column: See `read_sentences`.
        prompt_column: Column of the prompts, whose cells may be empty; None for no prompts.

    Raises:
        UsageError: As `read_sentences`, for both columns; or the file has no columns.
    """
    if prompt_column is None:
        yield from read_sentences(path, text_column)
        return
    if plain_suffix(path) not in SUFFIXES[1:]:
        raise UsageError(
            f"{path} has no columns", option="prompt_column", needed=f"a file in {', '.join(SUFFIXES[1:])}"
        )
    for text, prompt in zip(read_sentences(path, text_column), _read_prompts(path, prompt_column)):
        yield refuse_long(prompt + text, path) if not is_blank(text) else text


def _read_prompts(path: Path, column: str) -> Iterator[str]:
    try:
        yield from read_sentences(path, column)
    except UsageError as error:
        if "has no column" not in error.found:
            raise
        raise UsageError(error.found, fix="Choose one with `prompt_column`.") from None


def is_blank(text: str | None) -> bool:
    """Return whether a text is missing, empty or only whitespace. Blank sentences are neither trained on nor scored."""
    return not text or text.isspace()


def without_blanks(texts: Iterable[str]) -> Iterator[str]:
    """Return the texts that are not blank."""
    return (text for text in texts if not is_blank(text))


def read_part(path: Path, part: int, parts: int) -> Iterator[str]:
    """Yield the lines of a plain text file that begin in one of `parts` equal byte ranges.

    All parts together yield each line exactly once.

    Args:
        part: Index of the byte range, from 0.

    Raises:
        UsageError: As `decoded_lines`.
    """
    size = path.stat().st_size
    at, end = size * part // parts, size * (part + 1) // parts
    with path.open("rb") as file:
        if at:  # a line belongs to the part in which it begins
            file.seek(at - 1)
            at += len(file.readline()) - 1
        while at < end and (raw := file.readline(MOST_BYTES)):
            try:
                line = raw.rstrip(b"\r\n").decode("utf-8" if at else "utf-8-sig")
            except UnicodeDecodeError:
                line = "\0"
            if "\0" in line or len(line) > MOST_CHARACTERS:
                deque(read_sentences(path, None), maxlen=0)  # raises the error with the line number
            yield line
            at += len(raw)


def choose_column(columns: list[str], wanted: str | None, where: object) -> str:
    """Return the column to read: the requested one, or the only one, or `text`."""
    if wanted is None:
        wanted = columns[0] if len(columns) == 1 else "text"
    if wanted not in columns:
        raise UsageError(
            f"{where} has no column {wanted!r}; its columns are {shown(columns)}",
            fix="Choose one with `text_column`, or rename it to text.",
        )
    if columns.count(wanted) > 1:
        raise UsageError(
            f"{where} has {columns.count(wanted)} columns {wanted!r}", needed="one", fix="Rename the others."
        )
    return wanted


def shown(names: Iterable[str]) -> str:
    """Format column names or sentences for a message: on one line, with long names truncated."""
    printable = [repr(name)[1:-1] for name in names]
    cut = [name if len(name) <= 40 else f"{name[:37]}..." for name in printable[:MOST_NAMES]]
    return ", ".join([*cut, "..."] if printable[MOST_NAMES:] else cut) or "nothing"


def table_column(path: Path, text_column: str | None) -> str | None:
    """Return the column that `read_sentences` reads, or None if the file is empty or not a table.

    Raises:
        UsageError: As `table_rows`. Also for a missing column, or a first line that looks like sentences.
    """
    kind = plain_suffix(path)
    _, header = next(table_rows(path), (0, None)) if kind in TABLES else (0, None)
    if header is None:
        return None
    named = text_column in header or "text" in header
    if not named and not all(COLUMN_NAME.fullmatch(cell.strip()) for cell in header):
        table, delimiter = kind[1:].upper(), {".csv": "commas", ".tsv": "tabs"}[kind]
        raise UsageError(
            f"{path}: the first line looks like sentences, not like column names (found {shown(header)})",
            needed=f"a {table} header, with fields separated by {delimiter}",
            fix="Add a header (`text` if there is one column), or rename the file to .txt if each line is a sentence. "
            "If that line is the header, rename its column to `text` or, in training, choose it with `text_column`.",
        )
    return choose_column(header, text_column, path)


def table_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV or TSV file, header first, each with the number of the line it begins on.

    A warning at the end counts the rows that span several lines, because a stray quotation mark also causes them.

    Raises:
        UsageError: As `decoded_lines`. Also for a row that cannot be parsed or has more fields than the header.
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
            if any(row[width:]):  # some programs end every line with empty fields
                raise UsageError(
                    f"{path}, line {begin}: found {counted(len(row), 'field')}, but the header has {width}",
                    fix=f"{TOO_MANY_FIELDS[kind]}, or complete the header.",
                )
            if width:
                yield begin, row
    except csv.Error as error:
        cause, fix = str(error), QUOTES if kind == ".csv" else "Shorten it."  # in a TSV only the length can be wrong
        if "new-line" in str(error):
            cause, fix = "a carriage return inside a line", "Remove it."
        raise UsageError(f"{path}, line {end + 1}: cannot read the row that begins here ({cause})", fix=fix) from None
    if joined:
        logger.warning(
            f"{path}: {counted(len(joined), 'row')} of more than one line, the first from line {joined[0]}. If this is "
            "not intended, look for a stray quotation mark."
        )


def json_records(path: Path) -> Iterator[tuple[int, dict]]:
    """Yield the objects of a JSON Lines file with their line numbers; a blank line yields an empty object.

    Raises:
        UsageError: As `decoded_lines`. Also for a line that is not a JSON object.
    """
    for number, line in decoded_lines(path):
        try:
            record = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError) as error:  # ValueError: JSON's own, and a number of too many digits
            raise UsageError(f"{path}, line {number}: not JSON ({error})", needed=ONE_OBJECT) from None
        if not isinstance(record, dict):
            raise UsageError(f"{path}, line {number}: found {line[:40]!r}", needed=ONE_OBJECT)
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
                f"{path}, line {number}: found {counted(len(row), 'field')}",
                needed=f"{column + 1} or more, because column {name!r} is number {column + 1}",
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
        raise UsageError(
            f"{path} is not a readable Parquet file ({error})", fix="Download or write the file again."
        ) from None


def as_text(cell: object, where: object, number: int | None) -> str:
    """Return a cell as a sentence; an empty cell is a blank sentence. Raise UsageError if the cell is not text."""
    place = f"{where}, line {number}" if number else where
    if cell is not None and not isinstance(cell, str):
        raise UsageError(
            f"{place}: the text column contains {reprlib.repr(cell)}",
            needed="text",
            fix="Choose another column with `text_column`.",
        )
    text = cell or ""
    try:
        text.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can spell
        raise UsageError(
            f"{place}: {text[error.start :][:20]!r} is not valid Unicode", fix="Remove or replace these characters."
        ) from None
    return refuse_long(text, where, number)
