#!/usr/bin/env bash
# A field that the first rows do not have is dropped by datasets, pyarrow and polars, without an error.
#
# Versions: datasets 5.2.0, pyarrow 26.0.1, polars 2.1.0, Python 3.11.
# Behavior: Table.from_pylist of pyarrow, and Dataset.from_list and Dataset.from_generator of datasets, take the
#   columns from the first row. from_dicts and read_ndjson of polars take them from the first 100 rows. Later values
#   of other fields are lost without an error or a warning. load_dataset("json") keeps them, and so do schema= for
#   pyarrow, features= for from_generator and infer_schema_length=None for polars. from_list with features= that name
#   the field raises ValueError.
# Output seen (101 rows, of which only the last one has a "note"):
#   pyarrow, from_pylist: ['text']
#   datasets, from_list: ['text']
#   datasets, from_generator: ['text']
#   datasets, load_dataset: ['text', 'note']
#   polars, from_dicts: ['text']
#   polars, read_ndjson: ['text']
#   polars, read_ndjson, infer_schema_length=None: ['text', 'note']
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --no-compile datasets==5.2.0 pyarrow==26.0.1 polars==2.1.0 || exit 2
HF_HUB_OFFLINE=1 HF_HOME="$folder/cache" "$folder/bin/python" - "$folder/rows.jsonl" <<'EOF'
import json
import sys

import datasets
import polars
import pyarrow

datasets.disable_progress_bars()
path = sys.argv[1]
rows = [{"text": str(i)} for i in range(100)] + [{"text": "100", "note": "late"}]
with open(path, "w") as file:
    for row in rows:
        print(json.dumps(row), file=file)


def generate():
    yield from rows


columns = {
    "pyarrow, from_pylist": pyarrow.Table.from_pylist(rows).column_names,
    "datasets, from_list": datasets.Dataset.from_list(rows).column_names,
    "datasets, from_generator": datasets.Dataset.from_generator(generate).column_names,
    "datasets, load_dataset": datasets.load_dataset("json", data_files=path, split="train").column_names,
    "polars, from_dicts": polars.from_dicts(rows).columns,
    "polars, read_ndjson": polars.read_ndjson(path).columns,
    "polars, read_ndjson, infer_schema_length=None": polars.read_ndjson(path, infer_schema_length=None).columns,
}
for name, found in columns.items():
    print(f"{name}: {found}")
complete = {"datasets, load_dataset", "polars, read_ndjson, infer_schema_length=None"}
sys.exit(any(found != (["text", "note"] if name in complete else ["text"]) for name, found in columns.items()))
EOF
