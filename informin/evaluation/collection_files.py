"""Readers of the files of test collections, and of files of queries and documents."""

import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from informin.errors import UsageError, counted
from informin.texts import Row, as_number, is_blank, read_rows

logger = logging.getLogger(__name__)

OPTION = "retrieval"
GRADES = ("relevance", "score")  # columns
# Other names for a grade. A file with one of them and none of `GRADES` would be read as if every row were relevant.
LIKE_GRADES = ("grade", "grades", "label", "labels", "rel", "gain", "judgment", "judgement", "rating", *GRADES)
HIGHEST = 1000
Judgments = dict[tuple[str, str], int]  # grades by the ids of query and document; 0 or less is not relevant


def read_by_id(path: Path, key: str) -> dict[str, str]:
    """Return the texts of documents or queries by id, each with its title in front if it has one.

    Args:
        key: Column of the ids. The texts are in `text`, and titles in the optional column `title`.

    Raises:
        UsageError: A column or an id is missing, an id occurs twice, or a text is not a string.
    """
    texts: dict[str, str] = {}
    for row in read_rows(path, (key, "text"), OPTION, optional=("title",)):
        name = identifier(row, key)
        if name in texts:
            raise UsageError(f"{row.place}: the id {name!r} occurs twice", fix="Remove one of the rows.")
        parts = [part for part in (row["title"], row["text"]) if part is not None]
        if not all(isinstance(part, str) for part in parts):
            raise UsageError(f"{row.place}: the text of {name!r} is {parts!r:.60}", needed="text")
        texts[name] = " ".join(parts)
    return texts


def read_judgments(path: Path, query: str, document: str) -> Judgments:
    """Return the judgments of a file; see `grade_in`.

    Args:
        query, document: Names of the columns with the ids.

    Raises:
        UsageError: A column or an id is missing, or a grade contradicts an earlier one; or as `grade_in`.
    """
    judged: Judgments = {}
    for row in read_rows(path, (query, document), OPTION):
        pair = identifier(row, query), identifier(row, document)
        judge(judged, pair, grade_in(row, [name for name in row if name not in (query, document)]), row.place)
    return judged


def judge(judged: Judgments, pair: tuple[str, str], grade: int, place: str) -> None:
    """Add the grade of a query and a document. Raises UsageError if it contradicts an earlier one.

    Args:
        place: The file and the line, for the error.
    """
    if judged.setdefault(pair, grade) != grade:
        raise UsageError(f"{place}: {' and '.join(map(repr, pair))} have the grades {judged[pair]} and {grade}")


def identifier(row: Row, column: str) -> str:
    """Return an id as text. Raises UsageError if it is missing."""
    if row[column] is None:
        raise UsageError(f"{row.place} has no id", needed="ids in every row")
    return name_in(row[column])


def name_in(cell: Any) -> str:
    """Return an id or a label as text; the numbers 3 and 3.0 of JSON are "3"."""
    return str(int(cell) if isinstance(cell, float) and cell.is_integer() else cell)


def grade_in(row: Row, others: Iterable[str]) -> int:
    """Return the grade of a row, from the column `relevance` or `score`; 1 if the file has neither.

    As in trec_eval, grades of 0 and below are not relevant.

    Args:
        others: Further columns that may contain the grades.

    Raises:
        UsageError: The grade is missing or is not a whole number from -1,000 to 1,000, the two columns contradict each
            other, or another column may contain the grades.
    """
    columns = [name for name in GRADES if name in row]
    if not columns:
        if unread := [name for name in others if name]:
            raise UsageError(
                f"{row.place}: the column {unread[0]!r} is not read",
                needed="grades in a column relevance or score",
                fix="Rename the column, or remove it if every row is a relevant document.",
            )
        return 1
    grades = {as_number(row, name) for name in columns if row[name] is not None}
    if len(grades) != 1 or not all(grade.is_integer() and abs(grade) <= HIGHEST for grade in grades):
        cells = ", ".join(f"{name} {row[name]}" for name in columns)
        raise UsageError(f"{row.place}: found {cells}", needed=f"one whole number from -{HIGHEST:,} to {HIGHEST:,}")
    return int(grades.pop())


def check_texts(name: str, documents: Mapping[str, str], queries: Mapping[str, str]) -> None:
    """Raise UsageError if a query or most documents have no text. A message says how many documents have none."""
    if blank := [query for query, text in queries.items() if is_blank(text)]:
        raise UsageError(f"{name}: the query {blank[0]!r} has no text", fix="Remove the query and its judgments.")
    if empty := sum(map(is_blank, documents.values())):
        message = f"{name}: {empty:,} of {counted(len(documents), 'document')} have no text"
        if 2 * empty > len(documents):
            raise UsageError(message, fix="Check the column `text`.")
        logger.warning(f"{message}.")


def in_order(identifiers: Iterable[str]) -> list[str]:
    """Return ids in an order that does not depend on the file: by text, with numbers by value, so d2 before d10."""
    return sorted(identifiers, key=lambda name: ([_number(part) for part in re.split("([0-9]+)", name)], name))


def _number(part: str) -> tuple[int, str]:
    """Return a key in which digits compare by value. No number is computed: an id can have thousands of digits."""
    digits = part.lstrip("0")
    return (len(digits), digits) if part.isdecimal() else (0, part)
