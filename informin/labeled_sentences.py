"""Read a file of sentences, with labels if it has a column `label`, and its other columns."""

from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from informin.columns import column_names, other_columns, read_cells
from informin.errors import UsageError, counted
from informin.textfiles import is_blank, read_sentences, require_file, split_columns
from informin.textlines import became_shorter

LABEL = "label"  # column


@dataclass(frozen=True)
class Sentences:
    """N sentences, without blank ones, with one label each or none.

    Attributes:
        texts: N sentences, which may repeat.
        labels: N labels; None if the file has no column `label`. A sentence without a label has "".
        columns: N cells of each other column, such as an id.
    """

    texts: list[str]
    labels: list[str] | None = None
    columns: dict[str, list[str]] = field(default_factory=dict)

    def distinct(self) -> list[int]:
        """Return the rows of the first occurrence of each sentence."""
        first: dict[str, int] = {}
        for row, text in enumerate(self.texts):
            first.setdefault(text, row)
        return list(first.values())

    def take(self, rows: list[int]) -> "Sentences":
        """Return the sentences of these rows."""
        labels = self.labels and [self.labels[row] for row in rows]
        columns = {name: [cells[row] for row in rows] for name, cells in self.columns.items()}
        return Sentences([self.texts[row] for row in rows], labels, columns)


def load_labeled_sentences(path: str | Path, text_column: str | None = None, option: str = "train_file") -> Sentences:
    """Read the sentences of a file as `informin embed` does, their labels and the other columns.

    Args:
        path: Text file with a sentence per line, CSV, TSV, JSONL or Parquet file.
        text_column: Column with the sentences; None for `text`, or the only column.
        option: Name of the option that names the file, without dashes.

    Raises:
        UsageError: The file does not exist, cannot be read, or has no sentence.
    """
    path = Path(path)
    require_file(f"`{option}`", path)
    texts = list(read_sentences(path, text_column))
    kept = [row for row, text in enumerate(texts) if not is_blank(text)]
    if not kept:
        raise UsageError(
            f"is {path}, which has {counted(len(texts), 'line')} and no sentence", option=option, needed="sentences"
        )
    labeled = LABEL in column_names(path, values_only=False) and LABEL not in split_columns(text_column)
    names = [*([LABEL] if labeled else []), *(name for name in other_columns(path, text_column) if name != LABEL)]
    rows = list(islice(read_cells(path, names), len(texts))) if names else []  # not its end, which repeats warnings
    if names and len(rows) != len(texts):
        raise became_shorter(path)
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    labels = [label.strip() for label in columns.pop(LABEL)] if labeled else None
    return Sentences(texts, labels, columns).take(kept)
