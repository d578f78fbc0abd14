"""Read the texts of files for a job."""

from collections.abc import Sequence
from itertools import repeat

from informin.columns import other_columns, read_cells
from informin.errors import UsageError
from informin.inputfiles import find_files
from informin.jobs.source_rows import SourceRows
from informin.textfiles import is_blank, read_sentences, refuse_unread_column


def read_texts(files: Sequence[str], column: str | None = None) -> tuple[list[str], SourceRows]:
    """Read the texts of all files, without blank rows. Return them, and the rows that they come from.

    Args:
        files: Files of texts, or folders of files.
        column: Column with the texts, or several with commas between them; None for `text`, or the only column.

    Raises:
        UsageError: A file cannot be read, or there is no text.
    """
    paths, texts, source = find_files([*files]), [], SourceRows(files=files, column=column)
    refuse_unread_column(paths, column)
    for path in paths:
        names = other_columns(path, column)
        kept: list[int] = []
        columns: dict[str, list[str]] = {name: [] for name in names}
        others = read_cells(path, names) if names else repeat(())
        for row, (text, cells) in enumerate(zip(read_sentences(path, column), others)):
            if is_blank(text):
                source.blank += 1
                continue
            texts.append(text)
            kept.append(row)
            for name, cell in zip(names, cells):
                columns[name].append(cell)
        source.rows.append((path, kept))
        source.columns.append(columns)
    if not texts:
        raise UsageError(f"has no texts in {', '.join(map(str, paths))}", option="train_file")
    return texts, source
