"""Read text files, tables, JSON and Arrow files, compressed or not. Errors name the file and the line."""

import csv
import logging
import os
import re
import reprlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from informin.arrowfiles import KINDS, STATE, column_cells, column_names
from informin.errors import UsageError, counted, refuse_undecoded
from informin.jsonfiles import json_records
from informin.quoting import is_quoted
from informin.textlines import (
    COMPRESSIONS,
    MOST_BYTES,
    became_shorter,
    decoded_lines,
    has_old_line_ends,
    wide_encoding,
    without_marks,
)

logger = logging.getLogger(__name__)
Name = TypeVar("Name", str, str | None)

# How the fields of a table are parsed. Those of most TSV files are not quoted, so they may begin with a quotation mark.
CSV: dict[str, Any] = {"delimiter": ",", "strict": True}
TSV: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
QUOTED_TSV: dict[str, Any] = {"delimiter": "\t", "strict": True}
TABLES = (".csv", ".tsv")
csv.field_size_limit(max(csv.field_size_limit(), MOST_BYTES))  # a page of HTML in another column can be long
JSON = (".jsonl", ".json")
FIRST_ROWS = 1_000  # of a JSON Lines file, whose keys tell which one is read
OTHER_COLUMN = "Choose another column with `text_column`."
MOST_NAMES = 20  # in a message
MOST_CHARACTERS = 100_000  # of a sentence; encoders use up to 8,192 tokens, but the whole sentence is tokenized
SUFFIXES = (".txt", *TABLES, *JSON, *KINDS)
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
    """Raise UsageError if the path of an option does not exist, is not UTF-8, or is a folder, a pipe or a device."""
    refuse_undecoded(str(path), f"{option}: the name {path}")
    if not os.path.exists(path):  # Path.exists would raise for a name that is too long
        raise UsageError(f"{option}: {path} does not exist", fix="Check the path.")
    if path.is_dir():
        saved = (path / STATE).is_file()
        fix = "It is one of datasets' save_to_disk: give an .arrow file in it." if saved else None
        raise UsageError(f"{option}: {path} is a folder", needed="a file", fix=fix)
    if not path.is_file():
        raise UsageError(
            f"{option}: {path} is a pipe or a device, which can be read only once",
            needed="a file",
            fix="Save its content to a file.",
        )


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
        text_column: Column of a CSV, TSV, JSON, Parquet or Arrow file, or several with commas between them, which are
            joined by line breaks without blank cells. Default: the `text` column, or the only column.

    Raises:
        UsageError: As `decoded_lines`. Also for a missing column, a line that is not JSON, a cell that is not text, or
            a sentence of more than 100,000 characters.
    """
    kind, columns = plain_suffix(path), split_columns(text_column)
    if len(columns) > 1 and kind in SUFFIXES[1:]:
        return _read_joined(path, columns)
    if kind in TABLES:
        return _read_table(path, text_column)
    if kind in JSON:
        return _read_json(path, text_column)
    return _read_arrow(path, text_column) if kind in KINDS else _read_text(path)


def refuse_unread_column(paths: Sequence[Path], text_column: Name) -> None:
    """Raise UsageError if a column is given, and all files are text files, which have none."""
    if text_column is not None and paths and not any(plain_suffix(path) in SUFFIXES[1:] for path in paths):
        raise UsageError(
            f"is {text_column}, but {paths[0]} is a text file, which has no columns",
            option="text_column",
            fix="Leave it out, or give a table a name that ends in .csv or .tsv.",
        )


def split_columns(text_column: Name) -> list[Name]:
    """Return the names in `text_column`, which has commas between several of them; [None] for None."""
    if text_column is None or "," not in text_column:
        return [text_column]
    return [*dict.fromkeys(name.strip() for name in text_column.split(","))]


def _read_joined(path: Path, columns: list[str | None]) -> Iterator[str]:
    # Only the end of a JSON file shows that a column is missing. The end of a table only repeats its warnings.
    for cells in zip(*(read_sentences(path, column) for column in columns), strict=plain_suffix(path) in JSON):
        yield refuse_long(joined_cells(cells), path)


def joined_cells(cells: Iterable[str | None]) -> str:
    """Return the cells that are not blank, with line breaks between them."""
    return "\n".join(cell for cell in cells if cell and not cell.isspace())


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
    for text, prompt in zip(read_sentences(path, text_column), _read_prompts(path, prompt_column), strict=True):
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
        while at < end:
            if not (raw := file.readline(MOST_BYTES)):
                raise became_shorter(path)
            try:
                line = without_marks(raw).rstrip(b"\r\n").decode()
            except UnicodeDecodeError:
                line = "\0"
            if "\0" in line or len(line) > MOST_CHARACTERS:
                deque(read_sentences(path, None), maxlen=0)  # raises the error with the line number
            yield line
            at += len(raw)


def can_split(path: Path) -> bool:
    r"""Return whether `read_part` reads a text file: it is UTF-8, and its lines end with \n or \r\n."""
    with path.open("rb") as file:
        first = file.readline(MOST_BYTES + 1)
    return not (wide_encoding(first) or has_old_line_ends(first))


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
    columns = split_columns(text_column)
    named = "text" in header or any(column in header for column in columns)
    if not named and not all(COLUMN_NAME.fullmatch(cell.strip()) for cell in header):
        table, delimiter = kind[1:].upper(), {".csv": "commas", ".tsv": "tabs"}[kind]
        raise UsageError(
            f"{path}: the first line looks like sentences, not like column names (found {shown(header)})",
            needed=f"a {table} header, with fields separated by {delimiter}",
            fix="Add a header (`text` if there is one column), or rename the file to .txt if each line is a sentence. "
            "If that line is the header, rename its column to `text` or, in training, choose it with `text_column`.",
        )
    chosen = [choose_column(header, column, path) for column in columns]
    return chosen[0] if len(chosen) == 1 else text_column


def table_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV or TSV file, header first, each with the number of the line it begins on.

    A warning at the end counts the rows that span several lines, because a stray quotation mark also causes them.

    Raises:
        UsageError: As `decoded_lines`. Also for a row that cannot be parsed or has more fields than the header.
    """
    kind, width, end, joined = plain_suffix(path), 0, 0, []
    try:
        for reader in _readers(path):
            before = end
            for row in reader:
                begin, end = end + 1, before + reader.line_num
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


def _readers(path: Path) -> Iterator[Any]:
    """Yield readers of the rows of a table, one after the other.

    A TSV file gets a second one at the first field with a quotation mark, because only the rest of the file shows
    whether it is quoting.
    """
    lines = (line + "\n" for _, line in decoded_lines(path))
    if plain_suffix(path) == ".csv":
        yield csv.reader(lines, **CSV)
        return
    marked: list[str] = []
    yield csv.reader(_until_marked(lines, marked), **TSV)
    if marked:
        yield csv.reader(chain(marked, lines), **(QUOTED_TSV if is_quoted(path, decoded_lines(path)) else TSV))


def _until_marked(lines: Iterator[str], marked: list[str]) -> Iterator[str]:
    """Yield the lines before the first one with a field that begins with a quotation mark, which goes to `marked`."""
    for line in lines:
        if line[0] == '"' or '\t"' in line:
            marked.append(line)
            return
        yield line


def _read_text(path: Path) -> Iterator[str]:
    returns, first = 0, 0
    for number, line in decoded_lines(path):
        if "\r" in line:
            returns, first = returns + 1, first or number
        yield refuse_long(line, path, number)
    if returns:
        logger.warning(
            f"{path}: {counted(returns, 'line')} with a carriage return inside, the first is line {first}. If it ends "
            "a text, convert the file, for instance with tr '\\r' '\\n'."
        )


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


def _read_json(path: Path, text_column: str | None) -> Iterator[str]:
    records = json_records(path)
    head = list(islice(records, FIRST_ROWS))
    keys = {key for _, record in head for key in record}
    key = text_column or (keys.pop() if len(keys) == 1 else "text")
    found, absent, first = False, 0, (0, {"": None})
    for number, record in chain(head, records):
        if key in record:
            if key != "text" and text_column is None and len(record) > 1:
                raise UsageError(
                    f"{path}, line {number} has the columns {shown(record)}, and rows before it only {shown([key])}",
                    fix="Choose one with `text_column`.",
                )
            found = True
        elif record:
            absent, first = absent + 1, first if absent else (number, record)
        yield as_text(record.get(key), path, number)
    if absent and not found:
        choose_column(list(first[1]), key, f"{path}, line {first[0]}")
    if absent:
        logger.warning(
            f"{path}: {counted(absent, 'row')} without {key!r}, the first is line {first[0]}. They are read as blank."
        )


def _read_arrow(path: Path, text_column: str | None) -> Iterator[str]:
    column = choose_column(column_names(path), text_column, path)
    return (as_text(cell, path, None) for cell in column_cells(path, column))


def as_text(cell: object, where: object, number: int | None) -> str:
    """Return a cell as a sentence; an empty cell is a blank sentence. Raise UsageError if the cell is not text."""
    place = f"{where}, line {number}" if number else where
    if cell is not None and not isinstance(cell, str):
        raise UsageError(
            f"{place}: the text column contains {reprlib.repr(cell)}",
            needed="text",
            fix="Write one row per text." if isinstance(cell, list | dict) else OTHER_COLUMN,
        )
    text = cell or ""
    refuse_surrogates(text, place)
    return refuse_long(text, where, number)


def refuse_surrogates(text: str, where: object) -> None:
    """Raise UsageError for a text with half of a surrogate pair, which JSON can spell."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{where}: {text[error.start :][:20]!r} is not valid Unicode", fix="Remove or replace these characters."
        ) from None
