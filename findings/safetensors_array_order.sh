#!/usr/bin/env bash
# safetensors 0.8.0 writes a transposed NumPy array in the wrong order: the shape is right, and the numbers are not.
#
# Versions: safetensors 0.7.0 and 0.8.0, NumPy 2.4.6, Python 3.11.
# Behavior: save and save_file of safetensors.numpy copy the memory of an array as it is. An array that is not in C
#   order, for example a transposed matrix, a matrix in Fortran order or every second column, is read back with other
#   numbers. There is no error and no warning. Version 0.7.0 wrote the same arrays correctly, and save of
#   safetensors.torch raises ValueError for such tensors. np.ascontiguousarray(array) is written correctly by both
#   versions. LAPACK, and therefore many decompositions, return arrays in Fortran order.
# Output seen (the matrix [[0, 1, 2], [3, 4, 5]], transposed, and its first and last column):
#   0.7.0: transposed [[0, 3], [1, 4], [2, 5]], columns [[0, 2], [3, 5]]
#   0.8.0: transposed [[0, 1], [2, 3], [4, 5]], columns [[0, 1], [2, 3]]
#   0.8.0 after np.ascontiguousarray: transposed [[0, 3], [1, 4], [2, 5]], columns [[0, 2], [3, 5]]
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" || exit 2
cat > "$folder/read_back.py" <<'EOF'
import sys

import numpy as np
from safetensors.numpy import load, save

matrix = np.arange(6).reshape(2, 3)
arrays = {"transposed": matrix.T, "columns": matrix[:, ::2]}
if sys.argv[1:] == ["contiguous"]:
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
loaded = {name: load(save({"array": array}))["array"].tolist() for name, array in arrays.items()}
print(f"transposed {loaded['transposed']}, columns {loaded['columns']}")
EOF
"$folder/bin/pip" install --quiet --no-compile safetensors==0.7.0 numpy==2.4.6 || exit 2
old=$("$folder/bin/python" "$folder/read_back.py")
"$folder/bin/pip" install --quiet --no-compile safetensors==0.8.0 || exit 2
new=$("$folder/bin/python" "$folder/read_back.py")
contiguous=$("$folder/bin/python" "$folder/read_back.py" contiguous)
echo "0.7.0: $old"
echo "0.8.0: $new"
echo "0.8.0 after np.ascontiguousarray: $contiguous"
right="transposed [[0, 3], [1, 4], [2, 5]], columns [[0, 2], [3, 5]]"
wrong="transposed [[0, 1], [2, 3], [4, 5]], columns [[0, 1], [2, 3]]"
[ "$old" = "$right" ] && [ "$new" = "$wrong" ] && [ "$contiguous" = "$right" ]
