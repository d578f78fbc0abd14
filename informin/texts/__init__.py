"""Read texts and tables: .txt, .csv, .tsv and .jsonl files, plain or .gz, and .parquet and .arrow; and check lists."""

from informin.texts.files import Row, as_number, as_sentence, read_documents, read_rows, read_texts
from informin.texts.folders import find_files
from informin.texts.values import as_texts, encodable, is_blank, joined_cells, raise_if_set, raise_if_table

__all__ = [
    "Row",
    "as_number",
    "as_sentence",
    "as_texts",
    "encodable",
    "find_files",
    "is_blank",
    "joined_cells",
    "raise_if_set",
    "raise_if_table",
    "read_documents",
    "read_rows",
    "read_texts",
]
