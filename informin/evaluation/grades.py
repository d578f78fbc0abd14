"""The grades of documents in files of pairs and in the judgments of test collections."""

from collections.abc import Sequence

from informin.errors import UsageError
from informin.evaluation.table_files import as_number, is_empty

COLUMNS = ("relevance", "score")
# Other names for a grade. A file with one of them and none of `COLUMNS` would be read as if every row were relevant.
LIKE_GRADES = ("grade", "grades", "label", "labels", "rel", "gain", "judgment", "judgement", "rating", *COLUMNS)
HIGHEST = 1000


def grade_in(record: dict, where: object, number: int | None = None, least: int = 0) -> int:
    """Return the grade of a row, from the column `relevance` or `score`; 1 if both are missing or empty.

    Args:
        where: The file or row, for the message.
        number: Line of the file.
        least: The lowest grade.

    Raises:
        UsageError: It is not a whole number from `least` to 1,000, the two columns contradict each other, or another
            column seems to contain the grade.
    """
    given = [name for name in COLUMNS if not is_empty(record.get(name))]
    place = f"{where}, line {number}" if number else where
    if not given:
        refuse_unread(place, record, [name for name in record if name.strip().lower() in LIKE_GRADES])
        return 1
    grades = [whole_grade(record[name], name, where, number, least) for name in given]
    if len(set(grades)) > 1:
        found = f"{place}: relevance {grades[0]} contradicts score {grades[1]}"
        raise UsageError(found, fix="Remove the column that is not the grade.")
    return grades[0]


def whole_grade(cell: object, column: str, where: object, number: int | None = None, least: int = 0) -> int:
    """Return a cell as a grade; see `grade_in`."""
    grade = as_number(cell, column, where, number)
    if not (least <= grade <= HIGHEST and grade.is_integer()):
        place = f"{where}, line {number}" if number else where
        raise UsageError(f"{place}: the {column} is {grade:g}", needed=f"an integer from {least:,} to {HIGHEST:,}")
    return int(grade)


def refuse_unread(place: object, record: dict, columns: Sequence[str]) -> None:
    """Raise UsageError if a row has none of the columns of the grade, but others that may contain it."""
    if columns and not any(name in record for name in COLUMNS):
        raise UsageError(
            f"{place}: the column {columns[0]!r} is not read, and there is no column relevance or score",
            needed="grades in the column relevance or score",
            fix="Rename the column, or remove it if every row is a relevant document.",
        )


def refuse_contradiction(place: object, grade: int, before: int) -> None:
    """Raise UsageError if a query and a document have another grade in an earlier row."""
    if grade != before:
        raise UsageError(
            f"{place}: relevance {grade} contradicts an earlier row for the same query and document, "
            f"which has {before}",
            fix="Remove one of the two rows.",
        )
