"""Read columns of Parquet and Arrow files, and find the files of datasets' `save_to_disk`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from informin.errors import UsageError
from informin.files import leads_outside, read_json

KINDS = {".parquet": "Parquet", ".arrow": "Arrow"}
SAVED = "datasets' save_to_disk"
_VALUES = (  # see `column_names`
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_integer, pa.types.is_floating),
    *(pa.types.is_decimal, pa.types.is_temporal, pa.types.is_boolean),
)
STATE, SPLITS = "state.json", "dataset_dict.json"  # files of a saved Dataset and DatasetDict


def column_names(path: Path, values_only: bool = False) -> list[str]:
    """Return the names of the columns.

    Args:
        path: Parquet or Arrow file.
        values_only: Leave out columns other than texts, numbers, dates and truth values, such as bytes and lists.

    Raises:
        UsageError: The file is not readable.
    """
    with _readable(path):
        columns = list(_schema(path))
    kinds = {one.name: one.type.value_type if pa.types.is_dictionary(one.type) else one.type for one in columns}
    return [one.name for one in columns if not values_only or any(is_kind(kinds[one.name]) for is_kind in _VALUES)]


def column_cells(path: Path, column: str) -> Iterator[object]:
    """Yield the cells of a column. Bytes are decoded as UTF-8. The file is not mapped into memory.

    Raises:
        UsageError: The file is not readable, or became shorter while it was read.
    """
    with _readable(path):
        for array in _arrays(path, column):
            binary = pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)
            yield from (array.cast(pa.large_string()) if binary else array).to_pylist()


def saved_files(folder: Path, option: str) -> list[Path] | None:
    """Return the Arrow files of a Dataset or DatasetDict in a folder of `save_to_disk`; None for another folder.

    Args:
        option: Name of the option that names the folder, without dashes.

    Raises:
        UsageError: It has several splits, or its files are damaged.
    """
    if (folder / SPLITS).is_file():
        splits = [str(name) for name in _list(read_json(folder / SPLITS).get("splits"))]
        inside = [name for name in splits if not leads_outside(folder, name) and (folder / name).is_dir()]
        if len(inside) != 1:
            raise UsageError(
                f"is {folder}, a DatasetDict of {SAVED} with the splits {', '.join(splits) or '(none)'}",
                option=option,
                needed="one split",
                fix=f"Give {folder / inside[0]}." if inside else None,
            )
        return saved_files(folder / inside[0], option)
    if not ((folder / STATE).is_file() and (folder / "dataset_info.json").is_file()):
        return None
    state = read_json(folder / STATE)
    names = [one.get("filename") if isinstance(one, dict) else None for one in _list(state.get("_data_files"))]
    if not names or state.get("_indices_data_files") or any(leads_outside(folder, name) for name in names):
        raise UsageError(
            f"{folder / STATE} is not one that {SAVED} of today writes",
            fix="Load the folder with datasets.load_from_disk, and save it again.",
        )
    return [folder / str(name) for name in names]


def _list(value: object) -> list:
    return value if isinstance(value, list) else []


def _schema(path: Path) -> pa.Schema:
    if path.suffix.lower() == ".parquet":
        return pq.read_schema(path)
    with open(path, "rb") as file:
        return _reader(file).schema


def _arrays(path: Path, column: str) -> Iterator[pa.Array]:
    if path.suffix.lower() == ".parquet":
        yield from (batch.column(0) for batch in pq.ParquetFile(path).iter_batches(columns=[column]))
        return
    with open(path, "rb") as file:
        index = _reader(file).schema.names.index(column)
        file.seek(0)
        reader = _reader(file, pa.ipc.IpcReadOptions(included_fields=[index]))
        if isinstance(reader, pa.RecordBatchFileReader):
            yield from (reader.get_batch(number).column(0) for number in range(reader.num_record_batches))
        else:
            yield from (batch.column(0) for batch in reader)


def _reader(file, options: pa.ipc.IpcReadOptions | None = None):
    """Return a reader of the open Arrow file, which is a stream or has an index at its end."""
    start = file.read(6)
    file.seek(0)
    return (pa.ipc.open_file if start == b"ARROW1" else pa.ipc.open_stream)(file, options=options)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        kind = KINDS.get(path.suffix.lower(), "Parquet")
        fix = f"Decompress it: its name must end in .{kind.lower()}." if path.suffix.lower() not in KINDS else None
        raise UsageError(
            f"{path} is not a readable {kind} file ({error})", fix=fix or "Download or write the file again."
        ) from None
