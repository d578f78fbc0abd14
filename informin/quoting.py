"""Decide whether the fields of a TSV file are quoted as in CSV.

pandas, Excel and R put quotation marks around a field and double those inside it. In other TSV files, such as those of
STS and SentEval, a quotation mark is text, also at the start of a field.
"""

import logging
import re
from collections.abc import Iterable
from pathlib import Path

from informin.errors import UsageError, counted

logger = logging.getLogger(__name__)

FIELD = r'(?:"[^"]*(?:""[^"]*)*"|[^"\t]*)'
ROW = re.compile(rf"{FIELD}(?:\t{FIELD})*")
FIELDS = re.compile(rf"(?:^|\t)({FIELD})")
LONGEST = 2**17  # characters of a quoted row; csv reads fields up to this length


def is_quoted(path: Path, lines: Iterable[tuple[int, str]]) -> bool:
    """Return whether the fields of a TSV file are quoted as in CSV. Stops at the first row that cannot be quoted.

    They are if every quotation mark opens, closes or is doubled inside a field, and if at least one row shows it: the
    header has quotation marks; marks are doubled; or a tab or a line break is in the quotes, so that the lines do not
    have the fields of the header. A warning is logged if some fields are in quotation marks and nothing else shows it.

    Args:
        path: Path of the file, for messages.
        lines: All of its lines with their numbers.

    Raises:
        UsageError: Each row is one field, and a quotation mark that opens in one line closes in another one, which can
            be one text with a line break or two texts.
    """
    width, shown, enclosed, open_in = 0, False, [], 0
    for begin, row in _rows(lines):
        if row is None:
            return False
        fields = [match[1] for match in FIELDS.finditer("\n".join(row))]
        quoted = [field for field in fields if field.startswith('"') and field != '""']
        if width == 0:
            width, shown = len(fields), bool(quoted)
        if not quoted:
            continue
        enclosed.append(begin)
        if len(fields) > width or (len(row) > 1 and len(fields) < width):
            return False
        split = any(line.count("\t") + 1 != width for line in row)  # a tab or a line break is in the quotes
        if len(row) > 1 and width > 1 and not split:
            continue  # each line can be a row, with marks around a passage of several texts
        shown = shown or split or any('""' in field[1:-1] for field in quoted)
        open_in = open_in or (begin if len(row) > 1 else 0)
    if open_in and not shown:
        raise UsageError(
            f"{path}, line {open_in}: found a quotation mark that opens a text and closes in a later line, "
            "which can be one text with a line break, or several texts",
            fix="Save the file as CSV if a program quoted its fields, else as .txt without the header.",
        )
    if enclosed and not shown:
        logger.warning(
            f"{path}: {counted(len(enclosed), 'row')} with a field in quotation marks, the first in line "
            f"{enclosed[0]}. They are read as part of the text. If a program added them, save the file as CSV."
        )
    return shown


def _rows(lines: Iterable[tuple[int, str]]):
    """Yield the first row, and rows with quotation marks, as lists of lines, with the number of their first line.

    The row is None if it is not quoted as in CSV.
    """
    row: list[str] = []
    begin, first, is_open, size = 0, True, False, 0
    for number, line in lines:
        if not row:
            if '"' not in line and not (first and line):
                continue
            begin, size = number, 0
        row.append(line)
        is_open, size = is_open != bool(line.count('"') % 2), size + len(line)
        if size > LONGEST:
            break
        if not is_open:
            yield begin, row if ROW.fullmatch("\n".join(row)) else None
            row, first = [], False
    if row:
        yield begin, None  # the last quotation mark does not close
