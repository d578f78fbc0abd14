#!/usr/bin/env bash
# A float16 column of a Parquet file: fastparquet returns shortened bytes, and DuckDB reads the file, but not the table.
#
# Versions: pyarrow 26.0.1, fastparquet 2026.9.0, DuckDB 2.0.1, pandas 3.1.1, Python 3.11.
# Behavior: pyarrow writes float16 with Parquet's logical type Float16. fastparquet does not know it and returns bytes
#   without an error. Bytes that are zero are missing at the end, so the values have different lengths and must be filled
#   up before they can be decoded. DuckDB reads the same file as FLOAT, but raises NotImplementedException for the Arrow
#   table that was written, and pyarrow cannot sort or compare it.
# Output seen:
#   written: [2.5, -3.0, 5.960464477539063e-08]
#   fastparquet: [b'\x00A', b'\x00\xc2', b'\x01']
#   DuckDB, file: [2.5, -3.0, 5.960464477539063e-08]
#   DuckDB, Arrow table: NotImplementedException
#   pyarrow, sort: ArrowNotImplementedError
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --no-compile pyarrow==26.0.1 fastparquet==2026.9.0 duckdb==2.0.1 pandas==3.1.1 || exit 2
"$folder/bin/python" -W ignore - "$folder/halves.parquet" <<'EOF'
import sys

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from fastparquet import ParquetFile

path = sys.argv[1]
written = np.array([2.5, -3.0, 6e-8], np.float16)
table = pa.table({"number": pa.array(written)})
pq.write_table(table, path)


def name_of_error(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "no error"


in_bytes = list(ParquetFile(path).to_pandas()["number"])
read = [number for (number,) in duckdb.sql(f"SELECT number FROM '{path}'").fetchall()]
from_table = name_of_error(lambda: duckdb.from_arrow(table).fetchall())
sorting = name_of_error(lambda: pc.sort_indices(table["number"]))
print("written:", written.tolist())
print("fastparquet:", in_bytes)
print("DuckDB, file:", read)
print("DuckDB, Arrow table:", from_table)
print("pyarrow, sort:", sorting)
filled = b"".join(value.ljust(2, b"\0") for value in in_bytes)
as_stated = (
    [len(value) for value in in_bytes] == [2, 2, 1]
    and np.array_equal(np.frombuffer(filled, "<f2"), written)
    and read == written.tolist()
    and from_table == "NotImplementedException"
    and sorting == "ArrowNotImplementedError"
)
sys.exit(not as_stated)
EOF
