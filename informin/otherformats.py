"""File formats that are not read, and what to do with such a file."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Format:
    """A file format that is not read.

    Attributes:
        title: Its name, with an article.
        fix: What to do, as a full sentence.
        suffixes: Suffixes of its files.
        starts: Bytes that its files may begin with; none if only the suffix tells it from another format.
    """

    title: str
    fix: str
    suffixes: tuple[str, ...] = ()
    starts: tuple[bytes, ...] = ()


UNPACK = "Unpack it, and give the files in it."
PLAIN = "Save it as plain text in UTF-8, one text per line."
FORMATS = (
    Format("a spreadsheet", "Save the sheet as CSV in UTF-8.", (".xlsx", ".xlsm", ".xls", ".ods", ".numbers")),
    Format("a text document", PLAIN, (".docx", ".doc", ".odt", ".pages", ".epub")),
    Format("an RTF document", PLAIN, (".rtf",), (b"{\\rtf",)),
    Format("a PDF file", "Extract its text, for instance with pdftotext.", (".pdf",), (b"%PDF-",)),
    Format(
        "a ZIP archive, as are .xlsx and .docx files",
        f"{UNPACK} Save a spreadsheet as CSV, a document as text.",
        (".zip",),
        (b"PK\x03\x04", b"PK\x05\x06"),
    ),
    Format(
        "an Office file, such as .xls or .doc",
        "Save a spreadsheet as CSV in UTF-8, a document as plain text.",
        (),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",),
    ),
    Format("an archive", UNPACK, (".tar", ".tgz", ".7z", ".rar"), (b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07")),
    Format(
        "compressed with bzip2",
        "Decompress it, for instance with bunzip2.",
        (".bz2",),
        tuple(b"BZh%d1AY&SY" % level for level in range(1, 10)),
    ),
    Format("compressed with gzip", "Let its name end in .gz.", (), (b"\x1f\x8b\x08",)),
    Format("compressed with xz", "Let its name end in .xz.", (), (b"\xfd7zXZ\x00",)),
    Format("compressed with zstd", "Let its name end in .zst.", (), (b"\x28\xb5\x2f\xfd",)),
    Format("a Parquet file", "Let its name end in .parquet.", (), (b"PAR1",)),
    Format("an Arrow file", "Let its name end in .arrow.", (".feather",), (b"ARROW1",)),
    Format(
        "a NumPy file", "Save the texts as text, one per line, or as JSON Lines.", (".npy", ".npz"), (b"\x93NUMPY",)
    ),
    Format("a pickle", "Save the texts as JSON Lines.", (".pkl", ".pickle")),
    Format("an SQLite database", "Export the table as CSV.", (".db", ".sqlite", ".sqlite3"), (b"SQLite format 3",)),
)


def format_by_name(path: Path) -> Format | None:
    """Return the format that the suffix of a file names."""
    return next((one for one in FORMATS if path.suffix.lower() in one.suffixes), None)


def format_of(path: Path, start: bytes) -> Format | None:
    """Return the format of a file that begins with these bytes, by its suffix if that is more specific."""
    found = next((one for one in FORMATS if one.starts and start.startswith(one.starts)), None)
    return found and (format_by_name(path) or found)
