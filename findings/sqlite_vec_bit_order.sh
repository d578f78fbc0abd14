#!/usr/bin/env bash
# sqlite-vec and NumPy pack bits in opposite orders: embeddings with the same signs have the largest distance.
#
# Versions: sqlite-vec 0.1.9, apsw 3.54.1.0, NumPy 2.4.6, Python 3.11.
# Behavior: vec_quantize_binary puts the first dimension into the lowest bit of a byte. np.packbits, and so the
#   precision "ubinary" of sentence-transformers, puts it into the highest bit. A table that sqlite-vec quantized, and a
#   query that Python packed, have the same size and type, so a search compares them without an error, and the hits mean
#   nothing. np.packbits(bits, bitorder="little") has the order of sqlite-vec.
# Output seen (documents: the vector [1, 1, 1, 1, -1, -1, -1, -1], which is also the query, and its opposite):
#   query quantized by sqlite-vec: [('same', 0.0), ('opposite', 8.0)]
#   query packed by NumPy: [('opposite', 0.0), ('same', 8.0)]
#   query packed by NumPy, bitorder="little": [('same', 0.0), ('opposite', 8.0)]
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# apsw has an SQLite that loads extensions, which the sqlite3 module of some Python builds does not.
"${PYTHON:-python3}" -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --no-compile sqlite-vec==0.1.9 apsw==3.54.1.0 numpy==2.4.6 || exit 2
"$folder/bin/python" - <<'EOF'
import sys

import apsw
import numpy as np
import sqlite_vec

db = apsw.Connection(":memory:")
db.enable_load_extension(True)
db.load_extension(sqlite_vec.loadable_path())
db.execute("CREATE VIRTUAL TABLE texts USING vec0(name TEXT, bits bit[8])")
signs = np.float32([1, 1, 1, 1, -1, -1, -1, -1])
for name, vector in (("same", signs), ("opposite", -signs)):
    db.execute("INSERT INTO texts (name, bits) VALUES (?, vec_quantize_binary(?))", (name, vector.tobytes()))


def search(query):
    """Return the documents and their distances to these bits, best first."""
    sql = "SELECT name, distance FROM texts WHERE bits MATCH vec_bit(?) AND k = 2 ORDER BY distance"
    return db.execute(sql, (query,)).fetchall()


quantized = db.execute("SELECT vec_quantize_binary(?)", (signs.tobytes(),)).fetchall()[0][0]
hits = {
    "quantized by sqlite-vec": search(quantized),
    "packed by NumPy": search(np.packbits(signs > 0).tobytes()),
    'packed by NumPy, bitorder="little"': search(np.packbits(signs > 0, bitorder="little").tobytes()),
}
for name, found in hits.items():
    print(f"query {name}: {found}")
right = [("same", 0), ("opposite", 8)]
wrong = [("opposite", 0), ("same", 8)]
sys.exit(list(hits.values()) != [right, wrong, right])
EOF
