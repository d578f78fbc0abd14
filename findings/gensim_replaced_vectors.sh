#!/usr/bin/env bash
# A replaced word vector of gensim keeps the norm of the old one: most_similar returns a cosine similarity of 30.
#
# Versions: gensim 4.4.0, NumPy 2.4.6, Python 3.11.
# Behavior: KeyedVectors stores the norms at the first call of most_similar. Assignment to a word, and add_vectors
#   with replace=True, change the vector and not the norm, so later calls divide by the norm of the old vector. A
#   vector that became longer has a similarity above 1, and one that became shorter is ranked below words that are
#   less similar. similarity() normalizes again and is right. fill_norms(force=True) repairs most_similar.
# Output seen (the new vector of "train" has the direction of "bus"):
#   most_similar before: [('tram', 0.99), ('train', 0.0)]
#   "train" becomes [30, 0]: [('train', 30.0), ('tram', 0.99)], similarity 1.0
#   "train" becomes [0.1, 0]: [('tram', 0.99), ('train', 0.1)], similarity 1.0
#   after fill_norms(force=True): [('train', 1.0), ('tram', 0.99)]
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet --no-compile gensim==4.4.0 numpy==2.4.6 || exit 2
"$folder/bin/python" -W ignore - <<'EOF'
import sys

import numpy as np
from gensim.models import KeyedVectors

words = KeyedVectors(2)
words.add_vectors(["bus", "tram", "train"], np.array([[1, 0], [0.9, 0.1], [0, 1]], dtype=np.float32))


def neighbors():
    return [(word, round(float(score), 2)) for word, score in words.most_similar("bus")]


def replace(vector):
    words["train"] = np.array(vector, dtype=np.float32)
    return neighbors(), round(float(words.similarity("bus", "train")), 2)


before = neighbors()
longer, longer_similarity = replace([30, 0])
shorter, shorter_similarity = replace([0.1, 0])
words.fill_norms(force=True)
repaired = neighbors()
print(f"most_similar before: {before}")
print(f'"train" becomes [30, 0]: {longer}, similarity {longer_similarity}')
print(f'"train" becomes [0.1, 0]: {shorter}, similarity {shorter_similarity}')
print(f"after fill_norms(force=True): {repaired}")
as_stated = (
    longer == [("train", 30), ("tram", 0.99)]
    and shorter == [("tram", 0.99), ("train", 0.1)]
    and (longer_similarity, shorter_similarity) == (1, 1)
    and repaired == [("train", 1), ("tram", 0.99)]
)
sys.exit(not as_stated)
EOF
