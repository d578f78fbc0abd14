#!/usr/bin/env bash
# The Hamming distance of packed binary embeddings counts bytes, not bits, in SciPy: another document is best.
#
# Versions: SciPy 1.17.1, NumPy 2.4.6, Python 3.11.
# Behavior: the metric "hamming" is the share of positions that differ. For embeddings that np.packbits or the
#   precision "ubinary" of sentence-transformers packed, a position is a byte: one different bit counts as much as
#   eight. There is no error, and a document with more different bits can be the best hit. np.unpackbits before, or
#   np.bitwise_count of the XOR, gives the right order.
# Output seen (two documents of 16 bits: document 0 has one different bit in each byte, document 1 eight in one byte):
#   SciPy, packed: distances [1.0, 0.5], best document 1
#   SciPy, unpacked: distances [0.125, 0.5], best document 0
#   bits that differ: distances [2, 8], best document 0
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --no-compile scipy==1.17.1 numpy==2.4.6 || exit 2
"$folder/bin/python" - <<'EOF'
import sys

import numpy as np
from scipy.spatial.distance import cdist

query = np.zeros((1, 16), np.uint8)
documents = np.array([[1] + [0] * 7 + [1] + [0] * 7, [1] * 8 + [0] * 8], np.uint8)
packed_query = np.packbits(query, axis=1)
packed = np.packbits(documents, axis=1)
distances = {
    "SciPy, packed": cdist(packed_query, packed, "hamming")[0].tolist(),
    "SciPy, unpacked": cdist(query, documents, "hamming")[0].tolist(),
    "bits that differ": np.bitwise_count(packed_query ^ packed).sum(axis=1).tolist(),
}
best = {name: int(np.argmin(values)) for name, values in distances.items()}
for name, values in distances.items():
    print(f"{name}: distances {values}, best document {best[name]}")
as_stated = distances["SciPy, packed"] == [1, 0.5] and list(best.values()) == [1, 0, 0]
sys.exit(not as_stated)
EOF
