#!/usr/bin/env bash
# webdataset reads several samples as one if their keys have a dot, as the ids of arXiv do.
#
# Version: webdataset 1.0.2, Python 3.11.
# Behavior: TarWriter accepts any key and writes one file per field, named by key, dot and field. The reader ends the
#   key at the first dot, and joins neighboring files with one key. So keys that agree up to their first dot become one
#   sample with fields such as "00001.txt", and their own keys and fields are gone. There is no error, and a data set
#   of papers has one sample for each month. The reader does this on purpose (webdataset issue 237), so dots in keys
#   must be replaced before they are written.
# Output seen (three papers; the first two are of one month):
#   keys with dots: [('2101', ['00001.txt', '00002.txt']), ('2102', ['00001.txt'])]
#   keys without dots: [('2101-00001', ['txt']), ('2101-00002', ['txt']), ('2102-00001', ['txt'])]
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --no-compile webdataset==1.0.2 numpy==2.4.6 || exit 2
"$folder/bin/python" -W ignore - "$folder/papers.tar" <<'EOF'
import sys

import webdataset

path = sys.argv[1]


def read_back(keys):
    """Write a text for each key, and return the samples that are read."""
    with webdataset.TarWriter(path) as writer:
        for key in keys:
            writer.write({"__key__": key, "txt": f"text of {key}"})
    samples = []
    for sample in webdataset.WebDataset(path, shardshuffle=False):
        fields = [name for name in sample if not name.startswith("__")]
        samples.append((sample["__key__"], fields))
    return samples


dots = ["2101.00001", "2101.00002", "2102.00001"]
with_dots = read_back(dots)
without_dots = read_back([key.replace(".", "-") for key in dots])
print("keys with dots:", with_dots)
print("keys without dots:", without_dots)
merged = [("2101", ["00001.txt", "00002.txt"]), ("2102", ["00001.txt"])]
whole = [("2101-00001", ["txt"]), ("2101-00002", ["txt"]), ("2102-00001", ["txt"])]
sys.exit(not (with_dots == merged and without_dots == whole))
EOF
