"""Which rows of the user's files the texts come from. Blank rows are skipped, so the numbers of rows differ."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from informin.errors import UsageError, counted
from informin.outputs import save_text


@dataclass
class SourceRows:
    """Numbers of the rows that are texts.

    Attributes:
        rows: For each file its path, and the rows of its texts. Rows count from 0, without a header.
        blank: Number of rows that were skipped.
        files: The files and folders as they were given.
        column: Column with the texts, if it was given.
    """

    rows: list[tuple[Path, list[int]]] = field(default_factory=list)
    blank: int = 0
    files: Sequence[str] = ()
    column: str | None = None

    def line(self) -> str:
        """Return what was skipped."""
        texts = sum(len(rows) for _, rows in self.rows)
        return f"{counted(self.blank, 'blank row')} skipped, {counted(texts, 'text')} left."

    def refuse_other(self, vectors: Path) -> None:
        """Raise UsageError if a list of other rows exists next to the file of embeddings to write."""
        path = rows_file(vectors)
        if path.is_file() and path.read_text(encoding="utf-8", errors="replace") == self._content():
            return
        if path.exists():
            raise UsageError(f"{path} exists and lists other rows", fix="Choose another output, or delete it.")

    def save(self, vectors: Path) -> None:
        """Write the list of rows next to a file of embeddings if a row was skipped."""
        if self.blank:
            save_text(rows_file(vectors), self._content())

    def told(self, vectors: Path) -> str:
        """Return a line that says where the list is, or nothing."""
        return f"{rows_file(vectors)}: the file and row of each text (rows count from 0, without a header)\n" * (
            self.blank > 0
        )

    def _content(self) -> str:
        text = io.StringIO(newline="")
        writer = csv.writer(text, delimiter="\t", lineterminator="\n")
        writer.writerow(("file", "row"))
        for path, rows in self.rows:
            writer.writerows((path, row) for row in rows)
        return text.getvalue().encode(errors="backslashreplace").decode() if self.blank else ""


def rows_file(vectors: Path) -> Path:
    """Return the name of the list of rows of a file of embeddings: `x.rows.tsv` for `x.npy`."""
    return vectors.with_suffix(".rows.tsv")
