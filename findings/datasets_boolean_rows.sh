#!/usr/bin/env bash
# datasets reads a NumPy mask as row numbers: rows 0 and 1 are returned again and again, and no row is filtered.
#
# Versions: datasets 5.2.0, NumPy 2.4.6, Python 3.11.
# Behavior: select() with a boolean array takes False as row 0 and True as row 1, without an error. So does indexing
#   with the array. select() with a list of bool raises ArrowTypeError. The positions of the mask, np.flatnonzero(mask),
#   select the right rows.
# Output seen (rows 10, 20, 30 and 40, of which the mask keeps 20, 30 and 40):
#   select(mask): [10, 20, 20, 20]
#   indexing with the mask: [10, 20, 20, 20]
#   select(list of bool): ArrowTypeError
#   select(np.flatnonzero(mask)): [20, 30, 40]
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet --no-compile datasets==5.2.0 numpy==2.4.6 || exit 2
"$folder/bin/python" - <<'EOF'
import sys

import numpy as np
from datasets import Dataset

rows = Dataset.from_dict({"row": [10, 20, 30, 40]})
mask = np.array([False, True, True, True])
selected = list(rows.select(mask)["row"])
indexed = list(rows[mask]["row"])
try:
    of_list = list(rows.select(mask.tolist())["row"])
except Exception as error:
    of_list = type(error).__name__
positions = list(rows.select(np.flatnonzero(mask))["row"])
print("select(mask):", selected)
print("indexing with the mask:", indexed)
print("select(list of bool):", of_list)
print("select(np.flatnonzero(mask)):", positions)
once_more = [10, 20, 20, 20]
as_stated = (selected, indexed, of_list, positions) == (once_more, once_more, "ArrowTypeError", [20, 30, 40])
sys.exit(not as_stated)
EOF
