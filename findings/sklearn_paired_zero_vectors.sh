#!/usr/bin/env bash
# A zero vector has a cosine similarity of 0.5 to every vector in scikit-learn's paired_cosine_distances.
#
# Versions: scikit-learn 1.9.1, SciPy 1.17.1, NumPy 2.4.6, Python 3.11.
# Behavior: paired_cosine_distances is half the squared Euclidean distance of the normalized rows, which is the cosine
#   distance only of rows that have a length. For a zero vector, such as the embedding of a text without known words, it
#   is 0.5 to any other vector, and 0 to another zero vector. So a pair with an empty text counts as more similar than a
#   pair of unrelated texts. cosine_distances has 1 for the same pair, and SciPy NaN. The diagonal of
#   cosine_distances(x) is 0 for a zero vector, but that of cosine_distances(x, x.copy()) is 1.
# Output seen (distances of a zero vector and of [0, 1] to [1, 0]):
#   paired_cosine_distances: 0.5 and 1.0
#   cosine_distances: 1.0 and 1.0
#   SciPy, cdist: nan and 1.0
#   zero vector to itself: paired 0.0, cosine_distances(x) 0.0, cosine_distances(x, x.copy()) 1.0
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --no-compile scikit-learn==1.9.1 scipy==1.17.1 numpy==2.4.6 || exit 2
"$folder/bin/python" -W ignore - <<'EOF'
import math
import sys

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.metrics.pairwise import cosine_distances, paired_cosine_distances

zero = np.zeros((1, 2))
rows = np.array([[0.0, 0.0], [0.0, 1.0]])
other = np.array([[1.0, 0.0]])
distances = {
    "paired_cosine_distances": paired_cosine_distances(rows, np.repeat(other, 2, axis=0)),
    "cosine_distances": cosine_distances(rows, other)[:, 0],
    "SciPy, cdist": cdist(rows, other, "cosine")[:, 0],
}
for name, (empty, unrelated) in distances.items():
    print(f"{name}: {empty} and {unrelated}")
to_itself = [
    float(paired_cosine_distances(zero, zero)[0]),
    float(cosine_distances(zero)[0, 0]),
    float(cosine_distances(zero, zero.copy())[0, 0]),
]
print("zero vector to itself: paired {}, cosine_distances(x) {}, cosine_distances(x, x.copy()) {}".format(*to_itself))
paired, matrix, scipy = [found.tolist() for found in distances.values()]
as_stated = paired == [0.5, 1] and matrix == [1, 1] and math.isnan(scipy[0]) and to_itself == [0, 0, 1]
sys.exit(not as_stated)
EOF
