"""Read the texts of files for a job."""

from collections.abc import Sequence

from informin.errors import UsageError
from informin.jobs.source_rows import SourceRows
from informin.textfiles import is_blank, read_sentences
from informin.training.sentences import find_files


def read_texts(files: Sequence[str], column: str | None = None) -> tuple[list[str], SourceRows]:
    """Read the texts of all files, without blank rows. Return them, and the rows that they come from.

    Args:
        files: Files of texts, or folders of files.
        column: Column with the texts; None for `text`, or the only column.

    Raises:
        UsageError: A file cannot be read, or there is no text.
    """
    paths, texts, source = find_files([*files]), [], SourceRows(files=files, column=column)
    for path in paths:
        kept: list[int] = []
        for row, text in enumerate(read_sentences(path, column)):
            if is_blank(text):
                source.blank += 1
            else:
                texts.append(text)
                kept.append(row)
        source.rows.append((path, kept))
    if not texts:
        raise UsageError(f"has no texts in {', '.join(map(str, paths))}", option="train_file")
    return texts, source
