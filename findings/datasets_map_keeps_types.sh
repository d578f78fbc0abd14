#!/usr/bin/env bash
# A score that map writes over a label becomes True, and one over a float16 column becomes infinite.
#
# Version: datasets 5.2.0, Python 3.11.
# Behavior: if map returns a column that exists, datasets first tries to keep its type, and asks only whether Arrow can
#   make that type from the values. Arrow makes bool from any number and float16 from any float, so the new values are
#   lost without an error. Over a column of integers, the same scores change the type to float64. A new name keeps them,
#   and so does map(..., features=...).
# Output seen (scores 0.25 and 70000.5, written over a column of each type):
#   bool: bool [True, True]
#   float16: float16 [0.25, inf]
#   int64: float64 [0.25, 70000.5]
#   bool, with features=: float64 [0.25, 70000.5]
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet --no-compile datasets==5.2.0 || exit 2
"$folder/bin/python" - <<'EOF'
import sys

import datasets
from datasets import Dataset, Features, Value

SCORES = [0.25, 70000.5]
datasets.disable_progress_bars()


def overwritten(dtype, features=None):
    """Return the type and values of a column of this type after map wrote the scores over it."""
    rows = Dataset.from_dict({"label": [0, 1]}).cast_column("label", Value(dtype))
    rows = rows.map(lambda row, number: {"label": SCORES[number]}, with_indices=True, features=features)
    return rows.features["label"].dtype, list(rows["label"])


results = {dtype: overwritten(dtype) for dtype in ("bool", "float16", "int64")}
results["bool, with features="] = overwritten("bool", Features({"label": Value("float64")}))
for name, (dtype, values) in results.items():
    print(f"{name}: {dtype} {values}")
as_stated = list(results.values()) == [
    ("bool", [True, True]),
    ("float16", [0.25, float("inf")]),
    ("float64", SCORES),
    ("float64", SCORES),
]
sys.exit(not as_stated)
EOF
