"""Read embeddings from a file, wherever they come from."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError, safe_open

from informin.errors import UsageError, error_line

SUFFIXES = (".npy", ".parquet", ".safetensors")


def load_vectors(path: str | Path) -> np.ndarray:
    """Read embeddings (n, d) from a file.

    * `.npy`: a two-dimensional array. It is memory-mapped, so that it need not fit in memory.
    * `.parquet`: the only column of lists of numbers, of equal length.
    * `.safetensors`: the only two-dimensional tensor.

    Returns:
        (n, d) float16, float32 or float64.

    Raises:
        UsageError: The file is missing, damaged, or does not hold one matrix of floating-point numbers.
    """
    path = Path(path)
    if not path.is_file():
        raise UsageError(
            f"{path} does not exist", option="embeddings", needed=f"a file ending in {', '.join(SUFFIXES)}"
        )
    try:
        array = _READERS[path.suffix.lower()](path)
    except KeyError:
        raise UsageError(f"{path}", option="embeddings", needed=f"a file ending in {', '.join(SUFFIXES)}") from None
    except (OSError, ValueError, EOFError, SafetensorError, pa.ArrowException) as error:
        raise UsageError(f"{path} cannot be read: {error_line(error)}", option="embeddings") from None
    if array.ndim != 2 or array.dtype.kind != "f":
        found = f"{path} holds an array of shape {array.shape} and type {array.dtype}"
        raise UsageError(found, option="embeddings", needed="a matrix (n, d) of floating-point numbers")
    return array


def _npy(path: Path) -> np.ndarray:
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _parquet(path: Path) -> np.ndarray:
    table = pq.read_table(path)
    lists = [
        name
        for name, kind in zip(table.schema.names, table.schema.types)
        if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    ]
    if len(lists) != 1:
        raise ValueError(f"it has {len(lists)} columns of lists ({', '.join(lists) or 'none'}), expected one")
    column = table[lists[0]].combine_chunks()
    widths = set(column.value_lengths().to_pylist()) if not pa.types.is_fixed_size_list(column.type) else {1}
    if len(widths) != 1:
        raise ValueError("its lists have different lengths")
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)


def _safetensors(path: Path) -> np.ndarray:
    with safe_open(path, "np") as file:
        names = [name for name in file.keys() if len(file.get_slice(name).get_shape()) == 2]
        if len(names) != 1:
            raise ValueError(f"it has {len(names)} matrices ({', '.join(names) or 'none'}), expected one")
        return file.get_tensor(names[0])


_READERS = {".npy": _npy, ".parquet": _parquet, ".safetensors": _safetensors}
