"""Read the files of test collections. BEIR's layout, TSV and mteb tasks go through the same checks."""

import logging
import re
import reprlib
from collections.abc import Mapping
from pathlib import Path

from informin.errors import UsageError, counted
from informin.evaluation.grades import COLUMNS, HIGHEST, grade_in, refuse_contradiction, refuse_unread
from informin.evaluation.table_files import is_empty, rows_by_column, text_in
from informin.textfiles import as_text, is_blank, refuse_long

logger = logging.getLogger(__name__)

OPTION = "retrieval"
Judgments = dict[tuple[str, str], int]  # grades by the ids of query and document; 0 or less is not relevant


def read_texts(path: Path, key: str) -> dict[str, str]:
    """Return the texts of documents or queries by id, each with its title in front if it has one.

    Args:
        key: Column of the ids. The texts are in `text`, and titles in the optional column `title`.

    Raises:
        UsageError: An id occurs twice, or there is no row; or as `rows_by_column`, `identifier` and `full_text`.
    """
    found: dict[str, str] = {}
    for number, record in rows_by_column(path, OPTION, (key,), may_be_empty=("text",)):
        name = identifier(record[key], path, number)
        if name in found:
            raise UsageError(f"{path}, line {number}: the id {name!r} occurs twice", fix="Remove one of the rows.")
        found[name] = full_text(record, path, number)
    if not found:
        raise UsageError(f"{path} has no rows", needed="one row or more")
    return found


def identifier(cell: object, where: object, number: int | None = None) -> str:
    """Return an id as text. Raises UsageError if it is neither text nor a whole number."""
    if isinstance(cell, bool) or not isinstance(cell, str | int):
        place = f"{where}, line {number}" if number else where
        raise UsageError(f"{place}: the id is {reprlib.repr(cell)}", needed="text or a whole number")
    return as_text(str(cell), where, number)


def full_text(record: Mapping, where: object, number: int | None = None) -> str:
    """Return the title and the text of a row, joined by a space; empty if it has neither.

    Raises:
        UsageError: One of them is not text, or both together are longer than 100,000 characters.
    """
    named = ["text"] if record.get("title") is None else ["title", "text"]
    parts = [text_in(dict(record), name, where, number) for name in named]
    return refuse_long(" ".join(part for part in parts if not is_blank(part)), where, number)


def refuse_blank_texts(name: object, documents: Mapping[str, str], queries: Mapping[str, str]) -> None:
    """Raise UsageError if a query or most documents have no text. A message says how many documents have none."""
    if blank := [query for query, text in queries.items() if is_blank(text)]:
        raise UsageError(f"{name}: the query {blank[0]!r} has no text", fix="Remove the query and its judgments.")
    if empty := sum(map(is_blank, documents.values())):
        found = f"{name}: {empty:,} of {counted(len(documents), 'document')} have no text"
        if 2 * empty > len(documents):
            raise UsageError(found, needed="documents with text", fix="Check the column `text`.")
        logger.warning(f"{found}.")


def read_judgments(path: Path, query: str, document: str) -> Judgments:
    """Return the judgments of a file, whose grades are in the column `score` or `relevance`.

    Without such a column every document in the file is relevant, with grade 1. As in trec_eval, grades of 0 and below
    are not relevant.

    Args:
        query, document: Names of the columns with the ids.

    Raises:
        UsageError: A grade is missing, is not a whole number from -1,000 to 1,000 or contradicts another one, or an
            unknown column may contain the grades; or as `rows_by_column`.
    """
    found: Judgments = {}
    for number, record in rows_by_column(path, OPTION, (query, document)):
        place = f"{path}, line {number}"
        refuse_unread(place, record, [name for name in record if name and name not in (query, document)])
        columns = [name for name in COLUMNS if name in record]
        if columns and all(is_empty(record[name]) for name in columns):
            raise UsageError(f"{place}: no {' and no '.join(columns)}", needed="a whole number in every row")
        judge(found, str(record[query]), str(record[document]), grade_in(record, path, number, -HIGHEST), place)
    return found


def judge(found: Judgments, query: str, document: str, grade: int, place: object) -> None:
    """Add a judgment. Raises UsageError if it contradicts an earlier one."""
    refuse_contradiction(place, grade, found.setdefault((query, document), grade))


def in_order(identifiers: Mapping[str, object]) -> list[str]:
    """Return ids in an order that does not depend on the file: by text, with numbers by value, so d2 before d10."""
    return sorted(identifiers, key=_natural)


def _natural(name: str) -> tuple:
    """Return a key in which digits compare by value. No number is computed: an id can have thousands of digits."""
    parts = re.split("([0-9]+)", name)
    digits = ((len(part.lstrip("0")), part.lstrip("0")) for part in parts[1::2])
    return (*(item for pair in zip(parts[::2], digits) for item in pair), parts[-1], name)
