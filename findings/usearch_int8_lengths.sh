#!/usr/bin/env bash
# usearch forgets the length of float vectors in an int8 index, also for inner products and Euclidean distances.
#
# Versions: usearch 2.26.6, NumPy 2.4.6, Python 3.11.
# Behavior: an index with dtype="i8" takes float vectors, divides each by its own norm and multiplies it by 127,
#   whatever the metric is. Cosines need no lengths, but metric="ip" and metric="l2sq" do: the vector with the largest
#   inner product is ranked last, and vectors that are far apart have the distance 0. Nothing warns. Vectors that are
#   int8 already are stored as they are.
# Output seen (query [1, 0], vectors 1: [1, 0], 2: [10, 0], 3: [100, 3]):
#   ip, float32: best 3, distances {1: 0.0, 2: -9.0, 3: -99.0}
#   ip, int8: best 1 or 2, distances {1: -16128.0, 2: -16128.0, 3: -16001.0}
#   l2sq, float32: best 1, distances {1: 0.0, 2: 81.0, 3: 9810.0}
#   l2sq, int8: best 1 or 2, distances {1: 0.0, 2: 0.0, 3: 10.0}
#   vector 2 in the int8 index: [127, 0]; added as int8: [10, 0]
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet --no-compile usearch==2.26.6 numpy==2.4.6 || exit 2
"$folder/bin/python" - <<'EOF'
import sys

import numpy as np
from usearch.index import Index

vectors = {1: [1, 0], 2: [10, 0], 3: [100, 3]}
query = np.array([1, 0], dtype=np.float32)


def build(metric, dtype, source=np.float32):
    index = Index(ndim=2, metric=metric, dtype=dtype)
    for key, vector in vectors.items():
        index.add(key, np.array(vector, dtype=source))
    return index


def distances(metric, dtype):
    found = build(metric, dtype).search(query, 3)
    return dict(sorted(zip(found.keys.tolist(), found.distances.tolist())))


results = {}
for metric in ("ip", "l2sq"):
    for dtype, name in (("f32", "float32"), ("i8", "int8")):
        result = distances(metric, dtype)
        results[metric, dtype] = result
        best = [str(key) for key, distance in result.items() if distance == min(result.values())]
        print(f"{metric}, {name}: best {' or '.join(best)}, distances {result}")
stored = build("ip", "i8").get(2).tolist()
kept = build("ip", "i8", np.int8).get(2).tolist()
print(f"vector 2 in the int8 index: {stored}; added as int8: {kept}")
product = results["ip", "i8"]
euclidean = results["l2sq", "i8"]
as_stated = (
    results["ip", "f32"] == {1: 0, 2: -9, 3: -99}
    and results["l2sq", "f32"] == {1: 0, 2: 81, 3: 9810}
    and product[1] == product[2] < product[3]
    and euclidean[1] == euclidean[2] == 0
    and (stored, kept) == ([127, 0], [10, 0])
)
sys.exit(not as_stated)
EOF
