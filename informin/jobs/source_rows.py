"""Which rows of the user's files the texts come from, with their other columns, to join results with the files."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from informin.errors import UsageError, counted
from informin.outputs import save_text


@dataclass
class SourceRows:
    """Numbers of the rows that are texts, and the cells of their other columns.

    Attributes:
        rows: For each file its path, and the rows of its texts. Rows count from 0, without a header.
        columns: For each file the cells of its other columns by name, one per text.
        blank: Number of rows that were skipped.
        files: The files and folders as they were given.
        column: Column with the texts, if it was given.
    """

    rows: list[tuple[Path, list[int]]] = field(default_factory=list)
    columns: list[dict[str, list[str]]] = field(default_factory=list)
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
        """Write the list of rows next to a file of embeddings if a row was skipped or there are other columns."""
        if self._needed:
            save_text(rows_file(vectors), self._content())

    def told(self, vectors: Path) -> str:
        """Return a line that says where the list is, or nothing."""
        names = [*self._names]
        others = f", and its {', '.join(names)}" if names else ""
        return (
            f"{rows_file(vectors)}: the file and row of each text (rows count from 0, without a header){others}\n"
            if self._needed
            else ""
        )

    @property
    def _names(self) -> dict[str, str]:
        """The other columns of all files, and their names in the list, which differ from `file` and `row`."""
        names = dict.fromkeys(name for columns in self.columns for name in columns)
        return {name: f"{name}.1" if name in ("file", "row") else name for name in names}

    @property
    def _needed(self) -> bool:
        return self.blank > 0 or bool(self._names)

    def _content(self) -> str:
        text = io.StringIO(newline="")
        writer = csv.writer(text, delimiter="\t", lineterminator="\n")
        names = self._names
        writer.writerow(("file", "row", *names.values()))
        no_columns: dict[str, list[str]] = {}
        for (path, rows), columns in zip_longest(self.rows, self.columns, fillvalue=no_columns):
            others = [columns.get(name, [""] * len(rows)) for name in names]
            writer.writerows((path, row, *cells) for row, *cells in zip(rows, *others))
        return text.getvalue().encode(errors="backslashreplace").decode() if self._needed else ""


def rows_file(vectors: Path) -> Path:
    """Return the name of the list of rows of a file of embeddings: `x.rows.tsv` for `x.npy`."""
    return vectors.with_suffix(".rows.tsv")
