#!/usr/bin/env bash
# A usearch index that is read from its file finds fewer neighbors, and can report a metric that it does not use.
#
# Versions: usearch 2.26.6, NumPy 2.4.6, Python 3.11.
# Behavior: a file of usearch has the graph and the metric, but neither expansion_search nor expansion_add.
#   Index.restore sets both to their defaults, so the same queries miss neighbors that they found before. Nothing warns.
#   restore accepts both as keyword arguments. Index(metric="ip").load(file) takes the metric of the file, l2sq, but its
#   metric_kind stays IP.
# Output seen:
#   built: expansion_search 512, recall of 10 neighbors 1.000
#   restored: expansion_search 64, recall of 10 neighbors 0.967
#   restored with expansion_search=512: recall of 10 neighbors 1.000
#   loaded into an index for inner products: metric_kind IP, distance of a vector to itself 0.0
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet --no-compile usearch==2.26.6 numpy==2.4.6 || exit 2
"$folder/bin/python" - "$folder/vectors.usearch" <<'EOF'
import sys

import numpy as np
from usearch.index import Index

path = sys.argv[1]
generator = np.random.default_rng(0)
vectors = generator.normal(size=(3000, 64)).astype(np.float32)
queries = generator.normal(size=(200, 64)).astype(np.float32)
distances = ((queries[:, None] - vectors) ** 2).sum(axis=2)
nearest = distances.argsort(axis=1)[:, :10]


def recall(index):
    found = [index.search(query, 10, threads=1).keys for query in queries]
    return np.mean([len(np.intersect1d(keys, right)) / 10 for keys, right in zip(found, nearest)])


built = Index(ndim=64, metric="l2sq", dtype="f32", expansion_add=256, expansion_search=512)
built.add(np.arange(len(vectors)), vectors, threads=1)
built.save(path)
restored = Index.restore(path)
wide = Index.restore(path, expansion_search=512)
loaded = Index(ndim=64, metric="ip", dtype="f32")
loaded.load(path)
before = recall(built)
after = recall(restored)
repaired = recall(wide)
itself = float(loaded.search(vectors[0], 1).distances[0])
print(f"built: expansion_search {built.expansion_search}, recall of 10 neighbors {before:.3f}")
print(f"restored: expansion_search {restored.expansion_search}, recall of 10 neighbors {after:.3f}")
print(f"restored with expansion_search=512: recall of 10 neighbors {repaired:.3f}")
metric = loaded.metric_kind.name
print(f"loaded into an index for inner products: metric_kind {metric}, distance of a vector to itself {itself}")
as_stated = (
    (built.expansion_search, restored.expansion_search) == (512, 64)
    and after < before - 0.01
    and repaired > before - 0.01
    and (metric, itself) == ("IP", 0)
)
sys.exit(not as_stated)
EOF
