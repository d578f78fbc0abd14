#!/usr/bin/env bash
# polars counts 0.7 instead of 5 billion bytes of text: lengths are 32-bit numbers, and their sum is one, too.
#
# Versions: polars 2.1.0, pyarrow 26.0.1, Python 3.11.
# Behavior: str.len_bytes, str.len_chars and list.len return UInt32. sum() widens 8-bit and 16-bit integers to 64
#   bits, as documented, but not UInt32: from 4,294,967,296 on, the sum starts again at 0, without an error. cum_sum
#   does the same. mean() is right, and so is pyarrow's sum of the same column. The bytes of a corpus, or the tokens
#   of a data set, exceed the limit easily. cast(polars.UInt64) before sum() is right.
# Output seen (5,000 texts of 1,000,000 bytes):
#   sum: 705032704 (UInt32)
#   last of cum_sum: 705032704
#   rows times mean: 5000000000
#   pyarrow: 5000000000
#   cast to UInt64 first: 5000000000
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet --no-compile polars==2.1.0 pyarrow==26.0.1 || exit 2
"$folder/bin/python" - <<'EOF'
import sys

import polars
import pyarrow.compute

texts = polars.Series(["x" * 1_000_000]).new_from_index(0, 5000)  # all rows share the memory of one text
lengths = texts.str.len_bytes()
total = lengths.sum()
cumulative = lengths.cum_sum()[-1]
by_mean = round(len(lengths) * lengths.mean())
by_pyarrow = pyarrow.compute.sum(lengths.to_arrow()).as_py()
wide = lengths.cast(polars.UInt64).sum()
print(f"sum: {total} ({lengths.dtype})")
print(f"last of cum_sum: {cumulative}")
print(f"rows times mean: {by_mean}")
print(f"pyarrow: {by_pyarrow}")
print(f"cast to UInt64 first: {wide}")
right = 5_000_000_000
wrapped = right % 2**32
sys.exit((total, cumulative, by_mean, by_pyarrow, wide) != (wrapped, wrapped, right, right, right))
EOF
