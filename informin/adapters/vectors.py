"""Read embeddings from a file, wherever they come from."""

import warnings
from pathlib import Path
from tokenize import TokenError

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load

from informin.adapters.rows import CHUNK, read_rows, require_finite
from informin.errors import UsageError, error_line
from informin.inputfiles import require_vectors

MATRIX = "a matrix (n, d) of floating-point numbers with two columns or more"
# What the libraries raise for damaged files. numpy.load evaluates a header as Python.
DAMAGED: tuple[type[Exception], ...] = (
    *(OSError, ValueError, EOFError, TypeError, LookupError, AttributeError, ArithmeticError, MemoryError),
    *(SyntaxError, RuntimeError, TokenError, SafetensorError, pa.ArrowException),
)


def load_vectors(path: str | Path) -> np.ndarray:
    """Read embeddings (n, d) from a file.

    * `.npy`: a two-dimensional array. It is memory-mapped, so that it need not fit in memory; read it with `read_rows`.
    * `.parquet`: the only column of lists of floating-point numbers, of equal length and without nulls.
    * `.safetensors`: the only two-dimensional tensor. bfloat16 and float8 become float32.

    Returns:
        (n, d) float16, float32 or float64, with at least one row and two columns.

    Raises:
        UsageError: The file is missing, damaged, does not hold one matrix of floating-point numbers, or contains NaN or
            infinity.
    """
    path = Path(path)
    require_vectors(path)
    reader = _READERS[path.suffix.lower()]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # overflows in a damaged header
            array = reader(path)
    except DAMAGED as error:
        problem = error_line(error) or type(error).__name__
        raise UsageError(f"{path} cannot be read: {problem}", option="embeddings") from None
    return check_vectors(array, str(path))


def check_vectors(array: np.ndarray, name: str) -> np.ndarray:
    """Return embeddings (n, d) as an array that adapters can use.

    Args:
        array: Any array.
        name: What holds it, for messages.

    Raises:
        UsageError: It is not a matrix of floating-point numbers, or contains NaN or infinity.
    """
    if array.ndim != 2 or array.dtype.kind != "f" or len(array) < 1 or array.shape[1] < 2:
        found = f"{name} holds an array of shape {array.shape} and type {array.dtype}"
        raise UsageError(found, option="embeddings", needed=MATRIX)
    if array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    for start in range(0, len(array), CHUNK):
        require_finite(read_rows(array, slice(start, start + CHUNK)), start, name)
    return array


def _npy(path: Path) -> np.ndarray:
    with path.open("rb") as file:
        if file.read(2) == b"PK":
            raise ValueError("it is an .npz archive; save the array with numpy.save")
    array = np.lib.format.open_memmap(path, mode="r")
    # The rows of other arrays are not contiguous in the file, so they are read at once.
    return array if array.flags.c_contiguous else np.ascontiguousarray(np.load(path, allow_pickle=False))


def _parquet(path: Path) -> np.ndarray:
    with pq.ParquetFile(path) as file:
        names = [field.name for field in file.schema_arrow if _is_vectors(field.type)]
        if len(names) != 1:
            found = f"{len(names)} columns of lists of floating-point numbers ({', '.join(names) or 'none'})"
            raise ValueError(f"it has {found}, expected one")
        parts, row = [], 0
        for batch in file.iter_batches(CHUNK, columns=names):
            parts.append(_rows_of_lists(batch.column(0), row))
            row += len(batch)
    parts = [part for part in parts if len(part)]
    if len({part.shape[1] for part in parts}) > 1:
        raise ValueError("its lists have different lengths")
    return np.concatenate(parts) if parts else np.empty((0, 0), np.float32)


def _is_vectors(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return is_list and pa.types.is_floating(kind.value_type)


def _rows_of_lists(chunk: pa.Array, start: int) -> np.ndarray:
    """Return an array of lists as a matrix; `start` is the number of its first row."""
    if chunk.null_count:
        row = start + int(np.flatnonzero(chunk.is_null().to_numpy(zero_copy_only=False))[0])
        raise ValueError(f"row {row} is null. Remove or recompute this row")
    lengths = set(chunk.value_lengths().to_pylist())
    if len(lengths) > 1:
        raise ValueError("its lists have different lengths")
    values = chunk.flatten()
    width = lengths.pop() if lengths else 0
    if values.null_count:
        row = start + int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0]) // width
        raise ValueError(f"row {row} contains a null. Remove or recompute this row")
    return values.to_numpy(zero_copy_only=False).reshape(len(chunk), width)


def _safetensors(path: Path) -> np.ndarray:
    with safe_open(path, "pt") as file:
        names = [name for name in file.keys() if len(file.get_slice(name).get_shape()) == 2]
    if len(names) != 1:
        raise ValueError(f"it has {len(names)} matrices ({', '.join(names) or 'none'}), expected one")
    try:
        tensor = load(path.read_bytes())[names[0]]  # not a memory map, which a truncated file would break
    except KeyError as error:  # F4, F6 and F8_E8M0
        raise ValueError(f"its type {error} is not supported; save it as float32") from None
    if tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        tensor = tensor.float()
    return tensor.numpy()


_READERS = {".npy": _npy, ".parquet": _parquet, ".safetensors": _safetensors}
