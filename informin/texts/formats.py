"""Read lines of .txt files, and rows of .csv, .tsv, .jsonl, .parquet and .arrow files.

`datasets` also reads these files, but changes some texts without an error: it keeps byte order marks and NUL
characters, drops the text NA, converts numbers, takes the first row of a file without a header as column names, and
splits a sentence with a comma into columns. It cannot read a Parquet file without rows.
"""

import codecs
import csv
import gzip
import json
import logging
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

from informin.errors import UsageError, counted, error_line
from informin.texts.folders import format_of
from informin.texts.values import encodable

logger = logging.getLogger(__name__)
# From names of columns to the number and the cells of each row.
Read = Callable[[Sequence[str]], Iterator[tuple[int, Sequence[Any]]]]

FIRST_ROWS = 1_000  # of a JSON Lines file, whose keys are its columns
# Most programs that write TSV do not quote, and their fields can begin with a quotation mark.
DIALECTS: dict[str, dict[str, Any]] = {
    ".csv": {"delimiter": ",", "strict": True},
    ".tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}
csv.field_size_limit(2**24)  # another column can hold a long page


def open_table(path: Path) -> tuple[list[str], Read]:
    """Return the names of the columns, and a function that reads some of them, with None for a missing cell."""
    kind = format_of(path)
    if kind in DIALECTS:
        return _open_csv(path, kind)
    return _open_json(path) if kind == ".jsonl" else _open_arrow(path, kind)


def lines(path: Path) -> Iterator[str]:
    r"""Yield the lines of a UTF-8 text file, which end with \n or \r\n, without byte order marks."""
    opened: Any = gzip.open if path.suffix.lower() == ".gz" else open
    number = 0
    try:
        with opened(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if b"\0" in line:
                    raise UsageError(f"{path}, line {number}: found a zero byte", needed="text in UTF-8")
                yield line.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}, line {number}: {error}", needed="text in UTF-8") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path} is damaged after line {number} ({error})") from None


def _open_csv(path: Path, kind: str) -> tuple[list[str], Read]:
    rows = _csv_rows(path, kind)
    _, first = next(rows, (0, []))
    header = [name.strip() for name in first]  # some programs write a space after each comma

    def read(names: Sequence[str]) -> Iterator[tuple[int, Sequence[Any]]]:
        places = [header.index(name) if name in header else None for name in names]
        for number, row in rows:
            yield number, [row[place] if place is not None and place < len(row) else None for place in places]

    return header, read


def _csv_rows(path: Path, kind: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV or TSV file that are not empty, header first, each with the number of its last line."""
    reader = csv.reader(lines(path), **DIALECTS[kind])
    width = 0
    quoted = False
    try:
        for row in reader:
            width = width or len(row)
            if len(row) > width and any(row[width:]):  # some programs end every line with empty fields
                raise UsageError(
                    f"{path}, line {reader.line_num}: found {counted(len(row), 'field')}, but the header has {width}",
                    fix="Put quotation marks around a text with commas (CSV), or remove the tab from it (TSV). If each "
                    "line is a text, let the file's name end in .txt.",
                )
            if kind == ".tsv" and not quoted and any(field.startswith('"') for field in row):
                quoted = True
                logger.warning(
                    f"{path}, line {reader.line_num}: a field begins with a quotation mark, which is read as part of "
                    "the text. If a program has quoted the fields, save the file as CSV."
                )
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        found = "a carriage return inside a field" if "new-line" in str(error) else str(error)
        fix = "Check the quotation marks, and that lines end with a line feed."
        raise UsageError(f"{path}, line {reader.line_num}: {found}", fix=fix) from None


def _open_json(path: Path) -> tuple[list[str], Read]:
    records = _json_records(path)
    first = list(islice(records, FIRST_ROWS))

    def read(names: Sequence[str]) -> Iterator[tuple[int, Sequence[Any]]]:
        return ((number, [record.get(name) for name in names]) for number, record in chain(first, records))

    return list(dict.fromkeys(key for _, record in first for key in record)), read


def _json_records(path: Path) -> Iterator[tuple[int, dict]]:
    """Yield the objects of a JSON Lines file, each with the number of its line."""
    for number, line in enumerate(lines(path), start=1):
        if not line.isspace():
            try:
                record = json.loads(line)
            except ValueError as error:
                raise UsageError(f"{path}, line {number}: not JSON ({error})") from None
            if not isinstance(record, dict):
                raise UsageError(f"{path}, line {number}: found {line[:40]!r}", needed="one JSON object per line")
            may_be_cut = "\\ud" in line.lower()
            if may_be_cut:
                record = json.loads(encodable(json.dumps(record, ensure_ascii=False)))
            yield number, record


def _open_arrow(path: Path, kind: str) -> tuple[list[str], Read]:
    with _damage_named(path):
        names = _arrow_columns(path, kind)

    def rows(names: Sequence[str]) -> Iterator[Sequence[Any]]:
        with _damage_named(path):
            for batch in _arrow_batches(path, kind, list(names)):
                yield from zip(*(batch.column(name).to_pylist() for name in names))

    return names, lambda names: enumerate(rows(names))


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Raise UsageError with the name of a file that pyarrow cannot read."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(f"{path} is damaged or in another format ({error_line(error)}).") from None


def _arrow_columns(path: Path, kind: str) -> list[str]:
    """Return the names of the columns of a .parquet or .arrow file."""
    if kind == ".parquet":
        from pyarrow.parquet import read_schema

        return read_schema(path).names
    with _arrow_reader(path) as reader:
        return reader.schema.names


def _arrow_batches(path: Path, kind: str, names: list[str]) -> Iterator[Any]:
    """Yield the record batches of a .parquet or .arrow file."""
    if kind == ".parquet":
        from pyarrow.parquet import ParquetFile

        with ParquetFile(path) as file:
            yield from file.iter_batches(FIRST_ROWS, columns=names)
        return
    with _arrow_reader(path) as reader:
        yield from reader


def _arrow_reader(path: Path) -> Any:
    """Open an .arrow file in the stream format, which `datasets` writes, or in the file format."""
    from pyarrow import ArrowInvalid, ipc, memory_map

    try:
        return ipc.open_stream(memory_map(str(path)))
    except ArrowInvalid:
        file = ipc.open_file(memory_map(str(path)))
        batches = (file.get_batch(number) for number in range(file.num_record_batches))
        return ipc.RecordBatchReader.from_batches(file.schema, batches)
