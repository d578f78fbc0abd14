#!/usr/bin/env bash
# A data set with the format "arrow" returns a table for several indices, but a DataLoader cannot fetch a batch of it.
#
# Versions: datasets 5.2.0, torch 2.13.0 on a CPU, Python 3.11.
# Behavior: `dataset[[0, 1]]` is a pyarrow Table. `dataset.__getitems__([0, 1])`, which PyTorch's DataLoader calls for
#   each batch, takes the table for a dictionary of columns and raises a TypeError. With the format "pandas", it works
#   and returns a list of dictionaries. So the fastest format cannot be used for batches, and the message does not name
#   the format.
# Output seen:
#   dataset[[0, 1]]: Table
#   DataLoader, format arrow: TypeError: Index must either be string or integer
#   DataLoader, format pandas: list of 2
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet --no-compile torch==2.13.0 datasets==5.2.0 || exit 2
HF_HUB_OFFLINE=1 "$folder/bin/python" - <<'EOF'
import sys

import datasets
from torch.utils.data import DataLoader

data = datasets.Dataset.from_dict({"ids": [[1, 2], [3]]})


def first_batch(kind):
    try:
        batch = next(iter(DataLoader(data.with_format(kind), batch_size=2, collate_fn=list)))
        return f"{type(batch).__name__} of {len(batch)}"
    except TypeError as error:
        return f"TypeError: {error}"


table = type(data.with_format("arrow")[[0, 1]]).__name__
found = {kind: first_batch(kind) for kind in ("arrow", "pandas")}
print(f"dataset[[0, 1]]: {table}")
for kind, batch in found.items():
    print(f"DataLoader, format {kind}: {batch}")
sys.exit(not (table == "Table" and found["arrow"].startswith("TypeError") and found["pandas"] == "list of 2"))
EOF
