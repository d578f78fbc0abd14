#!/usr/bin/env bash
# After a row without an embedding, each row gets the vector of the next one: flatten() of pyarrow drops null lists.
#
# Versions: pyarrow 26.0.1, NumPy 2.4.6, Python 3.11.
# Behavior: flatten() of a list array, also of one with a fixed size, returns the numbers of the rows that are not null.
#   Reshaped to the width, they are a valid matrix with fewer rows, so zip pairs each later text with the vector of
#   the next row. `values` keeps a place for the null row of a fixed size, but ignores slicing: a slice has all rows of
#   the array that it was cut from. fill_null before flatten() keeps the rows in place. null_count tells whether any
#   row is null.
# Output seen (rows "a" to "d" with the vectors [1, 1], null, [3, 3] and [4, 4]):
#   flatten(): {'a': [1, 1], 'b': [3, 3], 'c': [4, 4]}
#   the last two rows, flatten(): [[3, 3], [4, 4]]
#   the last two rows, values: [[1, 1], [0, 0], [3, 3], [4, 4]]
#   fill_null([0, 0]), flatten(): {'a': [1, 1], 'b': [0, 0], 'c': [3, 3], 'd': [4, 4]}
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --no-compile pyarrow==26.0.1 numpy==2.4.6 || exit 2
"$folder/bin/python" - <<'EOF'
import sys

import pyarrow as pa

rows = pa.array([[1, 1], None, [3, 3], [4, 4]], pa.list_(pa.float32(), 2))


def matrix(numbers):
    return numbers.to_numpy(zero_copy_only=False).reshape(-1, 2).astype(int).tolist()


flat = dict(zip("abcd", matrix(rows.flatten())))
sliced = matrix(rows[2:].flatten())
values = matrix(rows[2:].values.fill_null(0))
filled = dict(zip("abcd", matrix(rows.fill_null([0, 0]).flatten())))
print(f"flatten(): {flat}")
print(f"the last two rows, flatten(): {sliced}")
print(f"the last two rows, values: {values}")
print(f"fill_null([0, 0]), flatten(): {filled}")
as_stated = (
    flat == {"a": [1, 1], "b": [3, 3], "c": [4, 4]}
    and sliced == [[3, 3], [4, 4]]
    and len(values) == 4
    and filled == {"a": [1, 1], "b": [0, 0], "c": [3, 3], "d": [4, 4]}
)
sys.exit(not as_stated)
EOF
