#!/usr/bin/env bash
# Dot products of int8 embeddings wrap around: the text itself is not the best hit.
#
# Versions: sentence-transformers 6.2.0, torch 2.13.0 on a CPU, NumPy 2.4.6, Python 3.11.
# Behavior: util.dot_score multiplies int8 matrices in int8, so each score is the true one modulo 256, as a signed byte.
#   semantic_search with dot_score sorts by such scores without an error. Cosine similarity of the same embeddings raises
#   RuntimeError. Converted to float32 first, all scores are right.
# Output seen (query [100, 100], documents [100, 100], [50, 50] and [5, 20]):
#   dot_score of int8: [32, 16, -60]
#   dot_score of float32: [20000.0, 10000.0, 2500.0]
#   best of [100, 100] and [9, 5], int8: document 1, score 120
#   best of [100, 100] and [9, 5], float32: document 0, score 20000.0
#   cosine of int8: RuntimeError
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --no-compile torch==2.13.0 sentence-transformers==6.2.0 numpy==2.4.6 || exit 2
"$folder/bin/python" -W ignore - <<'EOF'
import sys

import numpy as np
from sentence_transformers import util

query = np.array([[100, 100]], np.int8)
documents = np.array([[100, 100], [50, 50], [5, 20]], np.int8)
pair = np.array([[100, 100], [9, 5]], np.int8)


def best(dtype):
    hits = util.semantic_search(query.astype(dtype), pair.astype(dtype), score_function=util.dot_score)[0]
    return hits[0]["corpus_id"], hits[0]["score"]


whole = util.dot_score(query, documents)[0].tolist()
exact = util.dot_score(query.astype(np.float32), documents.astype(np.float32))[0].tolist()
try:
    cosine = util.cos_sim(query, documents)[0].tolist()
except Exception as error:
    cosine = type(error).__name__
print("dot_score of int8:", whole)
print("dot_score of float32:", exact)
print("best of [100, 100] and [9, 5], int8: document {}, score {}".format(*best(np.int8)))
print("best of [100, 100] and [9, 5], float32: document {}, score {}".format(*best(np.float32)))
print("cosine of int8:", cosine)
as_stated = (
    whole == [32, 16, -60]
    and exact == [20000, 10000, 2500]
    and best(np.int8) == (1, 120)
    and best(np.float32) == (0, 20000)
    and cosine == "RuntimeError"
)
sys.exit(not as_stated)
EOF
