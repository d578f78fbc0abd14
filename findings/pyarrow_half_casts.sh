#!/usr/bin/env bash
# A safe cast of pyarrow refuses integers that float32 cannot hold, but rounds them to float16, or makes them infinite.
#
# Versions: pyarrow 26.0.1, NumPy 2.4.6, Python 3.11.
# Behavior: cast(safe=True), the default, raises ArrowInvalid for an integer beyond the exact range of float32 or of
#   float64. For float16 nothing is checked: 2049, the first such integer, becomes 2048, and 70000 becomes infinite. An
#   array of that type that is made from a list of integers has the same values, without an error.
# Output seen:
#   16777217 as float: ArrowInvalid
#   9007199254740993 as double: ArrowInvalid
#   2049 as halffloat: 2048.0
#   70000 as halffloat: inf
#   the list [2049, 70000] as halffloat: [2048.0, inf]
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet --no-compile pyarrow==26.0.1 numpy==2.4.6 || exit 2
"$folder/bin/python" - <<'EOF'
import math
import sys

import pyarrow as pa


def safe_cast(number, kind):
    try:
        return float(pa.array([number]).cast(kind, safe=True)[0].as_py())
    except pa.ArrowInvalid as error:
        return type(error).__name__


results = []
for number, kind in ((2**24 + 1, pa.float32()), (2**53 + 1, pa.float64()), (2049, pa.float16()), (70000, pa.float16())):
    results.append(safe_cast(number, kind))
    print(f"{number} as {kind}: {results[-1]}")
from_list = [float(number) for number in pa.array([2049, 70000], pa.float16()).to_pylist()]
print("the list [2049, 70000] as halffloat:", from_list)
as_stated = results == ["ArrowInvalid", "ArrowInvalid", 2048, math.inf] and from_list == [2048, math.inf]
sys.exit(not as_stated)
EOF
