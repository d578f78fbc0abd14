#!/usr/bin/env bash
# Strings of a JSON file that look like a date or a UUID come back with another text from pyarrow, datasets and DuckDB.
#
# Versions: pyarrow 26.0.1, datasets 5.2.0, DuckDB 2.0.1, polars 2.1.0, Python 3.11.
# Behavior: JSON has strings, and these readers infer other types from their contents, if all values of the column (or
#   of the part that they look at) fit. pyarrow turns a date into a timestamp. load_dataset("json") of datasets reads
#   with pyarrow, so features= that ask for strings get the text of the timestamp, not the text of the file. DuckDB
#   turns a date into DATE, and a UUID into UUID, which is printed in lowercase. Ids that were read in this way no
#   longer match the ids of another file. explicit_schema of pyarrow and columns= of DuckDB keep the strings, and so
#   do polars and the json module of Python.
# Output seen (values as text; the file has "2024-01-05" and "6F9619FF-8B86-4011-B42D-00CF4FC964FF"):
#   pyarrow: 2024-01-05 00:00:00, 6F9619FF-8B86-4011-B42D-00CF4FC964FF
#   datasets: 2024-01-05 00:00:00, 6F9619FF-8B86-4011-B42D-00CF4FC964FF
#   datasets, features of strings: 2024-01-05 00:00:00, 6F9619FF-8B86-4011-B42D-00CF4FC964FF
#   DuckDB: 2024-01-05, 6f9619ff-8b86-4011-b42d-00cf4fc964ff
#   DuckDB, types: DATE, UUID
#   polars: 2024-01-05, 6F9619FF-8B86-4011-B42D-00CF4FC964FF
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --no-compile pyarrow==26.0.1 datasets==5.2.0 duckdb==2.0.1 polars==2.1.0 || exit 2
HF_HUB_OFFLINE=1 HF_HOME="$folder/cache" "$folder/bin/python" - "$folder/rows.jsonl" <<'EOF'
import json
import sys

import datasets
import duckdb
import polars
import pyarrow.json

datasets.disable_progress_bars()
path = sys.argv[1]
row = {"day": "2024-01-05", "id": "6F9619FF-8B86-4011-B42D-00CF4FC964FF"}
with open(path, "w") as file:
    print(json.dumps(row), file=file)


def load_first(**options):
    return datasets.load_dataset("json", data_files=path, split="train", **options)[0].values()


strings = datasets.Features({"day": datasets.Value("string"), "id": datasets.Value("string")})
relation = duckdb.sql(f"from read_json('{path}')")
found = {
    "pyarrow": pyarrow.json.read_json(path).to_pylist()[0].values(),
    "datasets": load_first(),
    "datasets, features of strings": load_first(features=strings),
    "DuckDB": relation.fetchall()[0],
    "DuckDB, types": relation.types,
    "polars": polars.read_ndjson(path).row(0),
}
texts = {name: [str(value) for value in values] for name, values in found.items()}
for name, values in texts.items():
    print(f"{name}: {', '.join(values)}")
timestamp = [row["day"] + " 00:00:00", row["id"]]
as_stated = (
    texts["pyarrow"] == texts["datasets"] == texts["datasets, features of strings"] == timestamp
    and texts["DuckDB"] == [row["day"], row["id"].lower()]
    and texts["DuckDB, types"] == ["DATE", "UUID"]
    and texts["polars"] == list(row.values())
)
sys.exit(not as_stated)
EOF
