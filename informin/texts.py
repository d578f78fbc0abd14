"""Texts and tables: read .txt, .csv, .tsv, .jsonl (plain or .gz), .parquet and .arrow files, and check lists."""

import codecs
import csv
import gzip
import json
import logging
import math
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from informin.errors import UsageError, counted, error_line

GENERAL_SENTENCES = Path(__file__).with_name("general_sentences.txt")  # English sentences of many topics

logger = logging.getLogger(__name__)


# Lists in memory

HALF_A_SIGN = re.compile("[\ud800-\udfff]")  # of a surrogate pair that was cut, as JSON may hold: nothing can encode it


def is_blank(text: str | None) -> bool:
    """Return whether a text is missing, empty or only whitespace. Blank texts are neither trained on nor scored."""
    return not text or text.isspace()


def is_missing(value: Any) -> bool:
    """Return whether a value is None, or marks a missing one in Python, NumPy or pandas."""
    numpy, pandas = (sys.modules.get(name) for name in ("numpy", "pandas"))  # reading texts needs neither
    if value is None or (numpy and value is numpy.ma.masked) or (pandas and value is pandas.NA):
        return True
    is_number = isinstance(value, float | Decimal | date) or (numpy and isinstance(value, numpy.generic))
    return bool(is_number and value != value)  # NaN and NaT


def as_texts(texts: Iterable[str], option: str = "texts") -> list[str]:
    """Return the texts of a list, a NumPy array, a pandas Series or a column of a dataset as a list.

    Raises:
        UsageError: It is a single string, a table, a set or not iterable, or an item is not a string.
    """
    if isinstance(texts, str | bytes):
        raise UsageError(f"is one text, {texts!r:.40}", option=option, needed="a list of texts")
    if not isinstance(texts, Iterable):
        raise UsageError(f"is {texts!r:.60}", option=option, needed="a list of texts")
    raise_if_table(texts, option)
    raise_if_set(texts, option)
    items = list(texts)
    for number, item in enumerate(items):
        if not isinstance(item, str):
            raise UsageError(f"contains {item!r:.60} in row {number:,}", option=option, needed="a list of texts")
    return [encodable(str(item)) for item in items]  # also those of NumPy


def joined_cells(
    names: Sequence[str], cells: Sequence[Any], place: Callable[[], str], option: str | None = None
) -> str:
    """Return the texts of some columns of a row, joined by a space. Missing and blank cells are left out.

    Args:
        names: Names of the columns.
        cells: Their cells.
        place: Returns where the row is, for the error.
        option: Name of the option that has the row, for the error.

    Raises:
        UsageError: A cell is not text.
    """
    for name, cell in zip(names, cells):
        if not isinstance(cell, str | None):
            found = f"{place()}: the column {name} contains {cell!r:.60}"
            raise UsageError(found, option=option, needed="text in every row")
    return " ".join(cell for cell in cells if not is_blank(cell))


def raise_if_table(given: Any, option: str, is_pair: bool = False) -> None:
    """Raise UsageError for a DataFrame or a dictionary of splits, which would give the names of columns or splits.

    Args:
        given: What was given.
        option: Name of the option.
        is_pair: Whether several columns are needed.
    """
    if isinstance(given, Mapping) or getattr(given, "ndim", 1) > 1:
        needed = "a dataset, or a list of pairs" if is_pair else "a list of texts"
        fix = "datasets.Dataset.from_pandas(table)" if is_pair else 'one column, such as table["text"]'
        raise UsageError(f"is a {type(given).__name__}", option=option, needed=needed, fix=f"Pass {fix}.")


def raise_if_set(given: Any, option: str) -> None:
    """Raise UsageError for a set, whose order differs between processes."""
    if isinstance(given, set | frozenset):
        raise UsageError("is a set, which has no order", option=option, needed="a list", fix="Pass sorted(...) of it.")


def encodable(text: str) -> str:
    """Return a text with the replacement character in place of halves of surrogate pairs."""
    return text if text.isascii() else HALF_A_SIGN.sub("\ufffd", text)


# Files: what they hold, row by row

TABLES = (".csv", ".tsv", ".jsonl")
COMPRESSED = (".txt", *TABLES)  # formats that can be compressed with gzip
SUFFIXES = (*COMPRESSED, ".parquet", ".arrow")
INDEX_RECORD, INDEX_DATA = "index.json", "index-data-"  # of `informin index`, whose texts are copies of others
SHARD = re.compile("([0-9]{1,9})/([0-9]{1,9})")
NEEDED = "a file ending in .txt, .csv, .tsv or .jsonl (plain or .gz), .parquet or .arrow"


def read_texts(
    paths: str | Path | Sequence[str | Path], text_column: str | None = None, *, keep_blank: bool = False
) -> Iterator[str]:
    """Yield the texts of files that are not blank: one per line of a .txt file, one per row of another file.

    The number of blank texts is logged at the end.

    Args:
        paths: Files, or folders of files; see `find_files`.
        text_column: Column of the texts, or several with commas between them, which are joined by a space. Default:
            `text`, `sentence`, or the only column.
        keep_blank: Whether to yield blank texts, too, so that a text's place is that of its line or row.

    Raises:
        UsageError: A file or column does not exist, a file cannot be parsed, or a value of the column is not text.
    """
    files = find_files(paths)
    if text_column and all(format_of(file) == ".txt" for file in files):
        raise UsageError(f"is {text_column}, but {files[0]} has no columns", option="text_column")

    def every() -> Iterator[str]:
        for file in files:
            if format_of(file) == ".txt":
                yield from (line.rstrip("\r\n") for line in lines(file))
                continue
            yield from (text for text, _ in _texts_of_table(file, text_column, {}))

    return every() if keep_blank else _without_blank(every())


def _texts_of_table(
    path: Path, text_column: str | None, columns: Mapping[str, str]
) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the text of each row of a file that has columns, and the cells of further columns.

    Args:
        path: The file.
        text_column: See `read_texts`.
        columns: See `read_documents`.
    """
    header, read = open_table(path, [*split_names(text_column), *columns])
    for name, option in columns.items():
        check_columns(path, header, [name], option)
    names = text_columns(path, header, text_column) if header else []
    better = [] if text_column else _better_columns(path, names)
    end = len(names) + len(better)
    for number, row in read([*names, *better, *columns]):
        place = partial(_place, path, number)
        for name, cell in zip(better, row[len(names) : end]):
            if cell is not None:
                before = f"from {names[0]}" if names else "empty"
                found = f"{place()}: the column {name} begins here, and earlier texts are {before}"
                raise UsageError(found, needed="one column of texts", fix="Choose it with `text_column`.")
        yield joined_cells(names, row[: len(names)], place), row[end:]


def _better_columns(path: Path, names: list[str]) -> list[str]:
    """Return what `text_columns` prefers to the columns that it chose, if later rows of the file can have more keys."""
    if format_of(path) != ".jsonl":
        return []
    chosen = [number for number, name in enumerate(TEXT_COLUMNS) if name in names]
    return list(TEXT_COLUMNS[: chosen[0]] if chosen else TEXT_COLUMNS)


def _without_blank(texts: Iterator[str]) -> Iterator[str]:
    """Yield the texts that are not blank, and log the number of the others."""
    skipped = 0
    for text in texts:
        if is_blank(text):
            skipped += 1
        else:
            yield text
    if skipped:
        logger.info(f"{counted(skipped, 'blank text')} skipped")


def as_shard(shard: str) -> tuple[int, int]:
    """Return the number of a shard, from 1, and the number of all shards: (2, 8) for `2/8`.

    Raises:
        UsageError: It is something else, or there is no such shard.
    """
    found = SHARD.fullmatch(shard)
    number, count = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= count:
        needed = "NUMBER/COUNT, such as 1/8 for the first of eight shards and 8/8 for the last"
        raise UsageError(f"is {shard}", option="shard", needed=needed)
    return number, count


def read_shard(paths: str | Path | Sequence[str | Path], text_column: str | None, shard: tuple[int, int]) -> list[str]:
    """Return the texts of one shard: contiguous texts that are not blank. The sizes of shards differ by at most one.

    The files are read twice, so that only the texts of the shard are in memory.

    Args:
        paths, text_column: See `read_texts`.
        shard: See `as_shard`.

    Raises:
        UsageError: As `read_texts`, or there are fewer texts than shards.
    """
    number, count = shard
    files = find_files(paths)
    total = sum(1 for _ in read_texts(files, text_column))
    if 0 < total < count:
        found = f"is {number}/{count} of {counted(total, 'text')}"
        raise UsageError(found, option="shard", needed=f"at most {counted(total, 'shard')}")
    first, end = (total * shards // count for shards in (number - 1, number))
    return list(islice(read_texts(files, text_column), first, end))


def read_columns(
    paths: str | Path | Sequence[str | Path], columns: Sequence[str], text_column: Sequence[str] | None = None
) -> Iterator[tuple[str, ...]]:
    """Yield several texts of each row of files, blank ones included.

    Args:
        paths: Files, or folders of files; see `find_files`.
        columns: Names of the columns by default. A file with other columns may have as many as these.
        text_column: Columns of the texts instead, or for a text several with commas between them, which are joined by a
            space.

    Raises:
        UsageError: As `read_texts`, or a file has no columns.
    """
    for file in find_files(paths):
        if format_of(file) == ".txt":
            found = f"{file} has no columns, and {counted(len(columns), 'text')} of each row are read"
            raise UsageError(found, option="train_file", needed=".csv, .tsv, .jsonl, .parquet or .arrow")
        header, read = open_table(file, [name for text in text_column or columns for name in split_names(text)])
        groups = column_groups(header, columns, text_column)
        names = [name for group in groups for name in group]
        check_columns(file, header, names, "text_column")
        for number, row in read(names):
            cells, place = iter(row), partial(_place, file, number)
            yield tuple(joined_cells(group, list(islice(cells, len(group))), place) for group in groups)


def column_groups(
    names: Sequence[str], columns: Sequence[str], text_column: Sequence[str] | None = None
) -> list[list[str]]:
    """Return the names of the columns of each text of a row.

    Args:
        names: Names of all columns.
        columns, text_column: See `read_columns`.
    """
    if text_column:
        return [split_names(text) for text in text_column]
    is_named = len(names) != len(columns) or set(columns) <= set(names)
    return [[name] for name in (columns if is_named else names)]


def read_documents(
    paths: str | Path | Sequence[str | Path], text_column: str | None, columns: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the texts of files, blank ones included, each with its values of further columns.

    Args:
        paths, text_column: See `read_texts`.
        columns: Further columns to read, each mapped to the option that names it. A missing or blank cell is None.

    Raises:
        UsageError: As `read_texts`, or a file has no columns.
    """
    for file in find_files(paths):
        if format_of(file) == ".txt":
            name, option = next(iter(columns.items()))
            found = f"is {name}, but {file} has no columns"
            raise UsageError(found, option=option, fix="Use .csv, .tsv, .jsonl, .parquet or .arrow.")
        for text, cells in _texts_of_table(file, text_column, columns):
            yield text, dict(zip(columns, map(cell_or_none, cells)))


class Cells(dict[str, Any]):
    """The cells of a row by column name; None for one that is missing, empty or blank.

    Attributes:
        place: The file and the line, for errors.
    """

    def __init__(self, cells: Iterable[tuple[str, Any]], place: str):
        super().__init__((name, cell_or_none(cell)) for name, cell in cells)
        self.place = place


def cell_or_none(cell: Any) -> Any:
    """Return a cell; None if it is blank, or marks a missing value, as NaN of JSON does."""
    return None if is_missing(cell) or (isinstance(cell, str) and is_blank(cell)) else cell


def read_rows(
    path: str | Path, columns: Sequence[str], option: str, optional: Sequence[str] = (), fix: str | None = None
) -> Iterator[Cells]:
    """Yield the rows of a CSV, TSV or JSONL file by column name. The first line of a CSV or TSV file has the names.

    Args:
        path: The file.
        columns: Columns that the file must have. A row has all columns of the file.
        option: Name of the option that names the file, for errors.
        optional: Columns that the file may lack. Their value is then None in every row.
        fix: How to choose other columns, for errors.

    Returns:
        Texts, or also other values from JSONL; None for a missing or blank cell.

    Raises:
        UsageError: The file or a column does not exist, the file cannot be parsed, or a row has too many fields.
    """
    path = Path(os.path.expanduser(path))
    if not path.is_file():
        raise UsageError(f"{path} does not exist", option=option)
    if format_of(path) not in TABLES:
        raise UsageError(f"{path} has an unsupported suffix", option=option, needed=", ".join(TABLES))
    header, read = open_table(path, None)
    present = [name for name in optional if name in header]
    check_columns(path, header, [*columns, *present], option, fix)
    names = list(dict.fromkeys([*header, *optional]))
    for number, row in read(names):
        yield Cells(zip(names, row), _place(path, number))


def as_sentence(row: Cells, column: str) -> str:
    """Return a cell that contains text. Raises UsageError if it does not."""
    cell = row[column]
    if not isinstance(cell, str):
        raise UsageError(f"{row.place}: the column {column} contains {cell!r:.60}", needed="text in every row")
    return cell


def as_number(row: Cells, column: str) -> float:
    """Return a cell as a finite number. Raises UsageError if it is not one."""
    cell = row[column]
    try:
        value = float(cell)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{row.place}: the column {column} contains {cell!r:.60}", needed="a number in every row")
    return value


def _place(path: Path, number: int) -> str:
    """Return a file, and the number of a line, from 1; or of a row of a .parquet or .arrow file, from 0."""
    return f"{path}, {'line' if format_of(path) in TABLES else 'row'} {number}"


def find_files(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """Return files, and the files of texts in folders and their subfolders, in a fixed order.

    Hidden files and folders inside a folder are skipped, and so are the texts of an index. Files with other suffixes
    are skipped with a log message. Links are followed, but no folder is read twice.

    Raises:
        UsageError: A path does not exist, a file has an unsupported suffix, or a folder has no file of texts.
        OSError: A subfolder cannot be read.
    """
    files: list[Path] = []
    for path in [paths] if isinstance(paths, str | Path) else paths:
        path = Path(os.path.expanduser(path))
        if path.is_dir():
            files += _files_in(path)
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


def _files_in(folder: Path) -> list[Path]:
    """Return the files of texts in a folder and its subfolders. Each is entered once, whatever links there are."""

    def stop(error: OSError) -> None:
        raise error

    files: list[Path] = []
    others: list[Path] = []
    entered: set[str] = set()
    for parent, folders, names in os.walk(folder, onerror=stop, followlinks=True):
        real = os.path.realpath(parent)
        if real in entered:
            folders.clear()
            continue
        entered.add(real)
        skipped_names = (".", INDEX_DATA) if INDEX_RECORD in names else "."
        folders[:] = sorted(name for name in folders if not name.startswith(skipped_names))
        for name in names:
            path = Path(parent, name)
            if not name.startswith("."):
                (files if format_of(path) in SUFFIXES else others).append(path)
    if not files:
        raise UsageError(f"{folder} has no file of texts", option="train_file", needed=NEEDED)
    if others:
        skipped = counted(len(others), "file")
        logger.info(f"{folder}: {skipped} with an unsupported suffix skipped, such as {min(others)}.")
    return sorted(files)


# Columns

TEXT_COLUMNS = ("text", "sentence")  # read by default, if a file has several columns
COLUMN_NAME = re.compile(r"[\w.:/-]+( [\w.:/-]+)?")  # up to two words; other first lines are texts
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}  # of CSV files that no reader of commas can read


def split_names(text_column: str | None) -> list[str]:
    """Return the names of columns with commas between them."""
    return [name.strip() for name in text_column.split(",")] if text_column else []


def text_columns(path: Path, columns: list[str], text_column: str | None) -> list[str]:
    """Return the names of the columns to read."""
    named = split_names(text_column) or [name for name in TEXT_COLUMNS if name in columns][:1]
    if not named and len(columns) == 1 and COLUMN_NAME.fullmatch(columns[0].strip()):
        named = columns
    if not named:
        fix = "Choose a column with `text_column`."
        if format_of(path) in DIALECTS:
            fix += " If the first line is a text, put the line `text` before it, or let the file's name end in .txt if "
            fix += "each line is a text."
        found, separator = _described_columns(path, columns)
        raise UsageError(f"{path} {found}", needed="a column text", fix=separator or fix)
    check_columns(path, columns, named, "text_column")
    return named


def check_columns(path: Path, columns: list[str], needed: Iterable[str], option: str, fix: str | None = None) -> None:
    """Raise UsageError unless a file has each needed column once.

    Args:
        path: The file.
        columns: Names of its columns.
        needed: Names of the columns that it must have.
        option: Name of the option that asks for them.
        fix: How to choose other columns.
    """
    for name in needed:
        if columns.count(name) != 1:
            found, separator = _described_columns(path, columns)
            raise UsageError(f"needs one column {name!r}, and {path} {found}", option=option, fix=separator or fix)


def _described_columns(path: Path, columns: list[str]) -> tuple[str, str | None]:
    """Return the columns of a file in words, and what to do if the separator of a CSV file is not a comma."""
    listed = ", ".join(name if len(name) <= 40 else f"{name[:37]}..." for name in columns[:20])
    words = f"has the columns {listed}" if columns else "is empty"
    if format_of(path) != ".csv" or len(columns) != 1:
        return words, None
    name = next((name for sign, name in SEPARATORS.items() if sign in columns[0]), None)
    return words, name and f"The columns seem to be separated by {name}. Save the file with commas between them."


# Formats

# From names of columns to the number and the cells of each row.
Read = Callable[[Sequence[str]], Iterator[tuple[int, Sequence[Any]]]]

FIRST_ROWS = 1_000  # of a JSON Lines file of texts, whose keys are its columns
QUOTED = re.compile('"([^"]|"")*"')
# Most programs that write TSV do not quote, and their fields can begin with a quotation mark.
DIALECTS: dict[str, dict[str, Any]] = {
    ".csv": {"delimiter": ",", "strict": True},
    ".tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}
csv.field_size_limit(max(2**24, csv.field_size_limit()))  # another column can hold a long page


def open_table(path: Path, needed: Iterable[str] | None) -> tuple[list[str], Read]:
    """Return the names of the columns, and a function that reads some of them, with None for a missing cell.

    Args:
        path: The file.
        needed: Columns that must be among the names if any row of a JSON Lines file has them; None for all. The names
            are the keys of its first rows. If a needed one is not among them, the file is read twice.
    """
    kind = format_of(path)
    if kind in DIALECTS:
        return _open_csv(path, kind)
    return _open_json(path, needed) if kind == ".jsonl" else _open_arrow(path, kind)


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


def _is_quoted(field: str) -> bool:
    """Return whether a program may have quoted a field, or its first line: the text has no quotation of its own."""
    return field.startswith('"') and (QUOTED.fullmatch(field) is not None or field.count('"') % 2 == 1)


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
            if kind == ".tsv" and not quoted and any(map(_is_quoted, row)):
                quoted = True
                logger.warning(
                    f"{path}, line {reader.line_num}: a field is in quotation marks, which are read as part of the "
                    "text. If a program has quoted the fields, save the file as CSV."
                )
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        found = "a carriage return inside a field" if "new-line" in str(error) else str(error)
        fix = "Check the quotation marks, and that lines end with a line feed."
        raise UsageError(f"{path}, line {reader.line_num}: {found}", fix=fix) from None


def _open_json(path: Path, needed: Iterable[str] | None) -> tuple[list[str], Read]:
    records = _json_records(path)
    first = list(islice(records, FIRST_ROWS))
    keys = _keys(first)
    if needed is None or not set(needed) <= set(keys):
        keys = _keys(_json_records(path))

    def read(names: Sequence[str]) -> Iterator[tuple[int, Sequence[Any]]]:
        return ((number, [record.get(name) for name in names]) for number, record in chain(first, records))

    return keys, read


def _keys(records: Iterable[tuple[int, dict]]) -> list[str]:
    """Return the keys of the objects of a JSON Lines file, each once."""
    return list(dict.fromkeys(key for _, record in records for key in record))


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
    """Open a .parquet file, or an .arrow file in the stream format, which `datasets` writes, or in the file format."""
    import pyarrow
    from pyarrow import parquet

    @contextmanager
    def damage_named() -> Iterator[None]:
        try:
            yield
        # Text that is not UTF-8 and dates that Python cannot hold are found when they are converted.
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
            raise UsageError(f"{path} is damaged or in another format ({error_line(error)}).") from None

    def opened() -> Any:
        if kind == ".parquet":
            return parquet.ParquetFile(path)
        try:
            return pyarrow.ipc.open_stream(pyarrow.memory_map(str(path)))
        except pyarrow.ArrowInvalid:
            file = pyarrow.ipc.open_file(pyarrow.memory_map(str(path)))
            batches = (file.get_batch(number) for number in range(file.num_record_batches))
            return pyarrow.ipc.RecordBatchReader.from_batches(file.schema, batches)

    def rows(names: Sequence[str]) -> Iterator[Sequence[Any]]:
        with damage_named(), opened() as file:
            for batch in file.iter_batches(FIRST_ROWS, columns=list(names)) if kind == ".parquet" else file:
                yield from zip(*(batch.column(name).to_pylist() for name in names))

    with damage_named(), opened() as file:
        columns = (file.schema_arrow if kind == ".parquet" else file.schema).names
    return columns, lambda names: enumerate(rows(names))
