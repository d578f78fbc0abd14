#!/usr/bin/env bash
# In DuckDB, a zero vector is the best hit of every search by cosine similarity, and passes every threshold.
#
# Version: duckdb 2.0.1, Python 3.11.
# Behavior: array_cosine_similarity of a zero vector is NaN, and DuckDB compares NaN as greater than every number. So
#   ORDER BY ... DESC puts it first, and WHERE similarity > 0.99 keeps it. The inner product of unit vectors has no NaN.
# Output seen:
#   best first: [('empty', nan), ('same', 1.0), ('near', 0.71)]
#   above 0.99: ['empty', 'same']
#   inner product, best first: ['same', 'near', 'empty']
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m pip install --quiet --no-compile --target "$folder" duckdb==2.0.1 || exit 2
PYTHONPATH="$folder" "${PYTHON:-python3}" - <<'EOF'
import math
import sys

import duckdb

db = duckdb.connect()
db.execute("CREATE TABLE texts (name VARCHAR, vector FLOAT[2])")
db.execute("INSERT INTO texts VALUES ('same', [1, 0]), ('empty', [0, 0]), ('near', [0.70710678, 0.70710678])")
similarity = "array_cosine_similarity(vector, [1, 0]::FLOAT[2])"
ranked = db.execute(f"SELECT name, round({similarity}, 2) FROM texts ORDER BY {similarity} DESC").fetchall()
kept = db.execute(f"SELECT name FROM texts WHERE {similarity} > 0.99 ORDER BY name").fetchall()
product = "array_inner_product(vector, [1, 0]::FLOAT[2])"
products = db.execute(f"SELECT name FROM texts ORDER BY {product} DESC").fetchall()
print("best first:", [(name, round(value, 2)) for name, value in ranked])
print("above 0.99:", [name for (name,) in kept])
print("inner product, best first:", [name for (name,) in products])
as_stated = ranked[0][0] == "empty" and math.isnan(ranked[0][1]) and kept == [("empty",), ("same",)]
sys.exit(not (as_stated and products[-1] == ("empty",)))
EOF
