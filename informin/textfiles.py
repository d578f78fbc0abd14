"""Reading text, tables and JSON lines, compressed or not, with errors that name file and line."""

import csv
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from informin.errors import UsageError

COMPRESSIONS = (".gz", ".xz", ".zst")
# A TSV has no quoting: a field may begin with a quotation mark.
TABLES = {".csv": {"delimiter": ","}, ".tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE}}
SUFFIXES = (".txt", ".csv", ".tsv", ".jsonl", ".json", ".parquet")


def plain_suffix(path: Path) -> str:
    """The suffix that says what the file holds, without that of the compression: .csv for a.csv.gz."""
    inner = path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path
    return inner.suffix.lower()


def open_bytes(path: Path) -> BinaryIO:
    """The file's bytes, decompressed by its suffix."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return gzip.open(path, "rb")
    if suffix == ".xz":
        return lzma.open(path, "rb")
    if suffix == ".zst":
        return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))
    return open(path, "rb")


def decoded_lines(path: Path, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    r"""The lines of a text file with their numbers, from 1, without the line end. A line ends at \n or \r\n alone.

    Raises:
        UsageError: the file is binary, damaged, or has a line that is not UTF-8; file and line are named.
    """
    number = 0
    try:
        with open_bytes(path) as file:
            for number, raw in enumerate(file, start=1):
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
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:  # OSError: gzip's and zstd's own
        raise UsageError(f"{path}: damaged or not a {path.suffix} file, after line {number} ({error}).") from None


def read_sentences(path: Path, text_column: str | None) -> Iterator[str]:
    """The sentences of one file, blank ones included: a line each of a text file, a cell each of a table.

    Args:
        text_column: the column of a CSV, TSV, JSONL or Parquet file; None for its `text` column or its only one.

    Raises:
        UsageError: as `decoded_lines`, and: no such column, a line that is not JSON, a cell that is not text.
    """
    kind = plain_suffix(path)
    if kind in TABLES:
        yield from _read_table(path, text_column)
    elif kind in (".jsonl", ".json"):
        yield from _read_json_lines(path, text_column)
    elif kind == ".parquet":
        yield from _read_parquet(path, text_column)
    else:
        for _, line in decoded_lines(path):
            yield line


def choose_column(columns: list[str], wanted: str | None, where: object) -> str:
    """The column to read: the one asked for, else `text`, else the only one."""
    if wanted is None:
        wanted = columns[0] if len(columns) == 1 else "text"
    if wanted not in columns:
        raise UsageError(f"{where}: no column {wanted!r}; found {', '.join(columns)}. Name one with --text_column.")
    return wanted


def table_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV or TSV file with their line numbers, the header first.

    Raises:
        UsageError: as `decoded_lines`, and for a table that cannot be parsed.
    """
    reader = csv.reader((line + "\n" for _, line in decoded_lines(path)), **TABLES[plain_suffix(path)])
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise UsageError(f"{path}, line {reader.line_num}: not a table that can be read ({error}).") from None


def json_records(path: Path) -> Iterator[tuple[int, dict]]:
    """The objects of a JSON-lines file with their line numbers; an empty one for a blank line.

    Raises:
        UsageError: as `decoded_lines`, and for a line that is not a JSON object.
    """
    for number, line in decoded_lines(path):
        try:
            record = json.loads(line) if line.strip() else {}
        except json.JSONDecodeError as error:
            raise UsageError(f"{path}, line {number}: not JSON ({error}). Needed one JSON object a line.") from None
        if not isinstance(record, dict):
            raise UsageError(f"{path}, line {number}: found {line[:40]!r}; needed one JSON object a line.")
        yield number, record


def _read_table(path: Path, text_column: str | None) -> Iterator[str]:
    rows = table_rows(path)
    _, header = next(rows, (0, None))
    if header is None:
        return
    column = header.index(choose_column(header, text_column, path))
    for number, row in rows:
        if row and len(row) <= column:
            raise UsageError(
                f"{path}, line {number}: found {len(row)} fields, needed {column + 1} to reach column "
                f"{header[column]!r}."
            )
        yield row[column] if row else ""


def _read_json_lines(path: Path, text_column: str | None) -> Iterator[str]:
    column = None
    for number, record in json_records(path):
        if not record:
            yield ""
            continue
        column = choose_column(list(record), column or text_column, f"{path}, line {number}")
        yield as_text(record[column], path, number)


def _read_parquet(path: Path, text_column: str | None) -> Iterator[str]:
    try:
        file = pq.ParquetFile(path)
        column = choose_column(file.schema_arrow.names, text_column, path)
        for batch in file.iter_batches(columns=[column]):
            for cell in batch.column(0).to_pylist():
                yield as_text(cell, path, None)
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(f"{path}: not a readable Parquet file ({error}).") from None


def as_text(cell: object, where: object, number: int | None) -> str:
    """A cell as a sentence; an empty one is a blank sentence.

    Raises:
        UsageError: it is something else than text.
    """
    if cell is not None and not isinstance(cell, str):
        place = f"{where}, line {number}" if number else where
        raise UsageError(f"{place}: the text column holds {cell!r}; needed text. Name another with --text_column.")
    try:
        (cell or "").encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can spell
        raise UsageError(f"{where}, line {number}: {cell[:40]!r} is not valid Unicode.") from None
    return cell or ""
