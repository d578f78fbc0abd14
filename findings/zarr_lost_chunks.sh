#!/usr/bin/env bash
# A Zarr array that lost a file is read without an error: the missing vectors are zeros.
#
# Versions: zarr 3.1.6, NumPy 2.4.6, Python 3.11.
# Behavior: Zarr writes one file per chunk, and leaves out chunks that hold only the fill value, which is 0 unless it is
#   set. A chunk without a file is therefore read as zeros, also if a copy or a download left it out, or if the program
#   that wrote the array stopped halfway (zarr-python issue 486). If
#   nchunks_initialized is below nchunks, chunks are missing, or were all zeros. With fill_value=nan, missing vectors
#   are NaN.
# Output seen (four vectors in two chunks; the file of the second chunk is removed):
#   fill_value 0: [[1.0, 2.0], [3.0, 4.0], [0.0, 0.0], [0.0, 0.0]], 1 of 2 chunks
#   fill_value NaN: [[1.0, 2.0], [3.0, 4.0], [nan, nan], [nan, nan]], 1 of 2 chunks
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --no-compile zarr==3.1.6 numpy==2.4.6 || exit 2
"$folder/bin/python" - "$folder" <<'EOF'
import sys
from pathlib import Path

import numpy as np
import zarr

vectors = np.arange(1, 9, dtype=np.float32).reshape(4, 2)


def without_second_chunk(name, **options):
    """Write the vectors, remove the file of their second half, and return what is read."""
    path = Path(sys.argv[1]) / name
    array = zarr.create_array(path, shape=vectors.shape, chunks=(2, 2), dtype=vectors.dtype, **options)
    array[:] = vectors
    (path / "c" / "1" / "0").unlink()
    return zarr.open_array(path, mode="r")


arrays = {
    "fill_value 0": without_second_chunk("zero"),
    "fill_value NaN": without_second_chunk("nan", fill_value=np.nan),
}
for name, array in arrays.items():
    print(f"{name}: {array[:].tolist()}, {array.nchunks_initialized} of {array.nchunks} chunks")
zero, nan = [array[:] for array in arrays.values()]
kept = np.array_equal(zero[:2], vectors[:2]) and np.array_equal(nan[:2], vectors[:2])
counts = [array.nchunks_initialized for array in arrays.values()]
sys.exit(not (kept and not zero[2:].any() and np.isnan(nan[2:]).all() and counts == [1, 1]))
EOF
