#!/usr/bin/env bash
# The local mode of the Qdrant client reports that vectors are float16 or uint8, and keeps float32.
#
# Versions: qdrant-client 1.20.0, NumPy 2.4.6, Python 3.11.
# Behavior: create_collection accepts a datatype, and get_collection returns it, but QdrantClient(":memory:") stores
#   what it gets: numbers that uint8 or float16 cannot hold come back unchanged, and the scores are those of float32.
#   A test in local mode therefore says nothing about the precision that the same code has on a server. Nothing warns.
# Output seen (the vector [300.75, -5.5, 0.1] and the query [1, 0, 0]):
#   float32: reported float32, stored [300.75, -5.5, 0.10000000149011612], score 300.75
#   float16: reported float16, stored [300.75, -5.5, 0.10000000149011612], score 300.75
#   uint8: reported uint8, stored [300.75, -5.5, 0.10000000149011612], score 300.75
#   0.1 in float16 is 0.0999755859375
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet --no-compile qdrant-client==1.20.0 numpy==2.4.6 || exit 2
"$folder/bin/python" - <<'EOF'
import sys

import numpy as np
from qdrant_client import QdrantClient, models

VECTOR = [300.75, -5.5, 0.1]


def stored(datatype):
    """Return the datatype that a new local collection reports, the vector that it stores, and the score of a query."""
    client = QdrantClient(":memory:")
    size = models.VectorParams(size=3, distance=models.Distance.DOT, datatype=datatype)
    client.create_collection("texts", vectors_config=size)
    client.upsert("texts", [models.PointStruct(id=1, vector=VECTOR)])
    reported = client.get_collection("texts").config.params.vectors.datatype
    vector = client.retrieve("texts", [1], with_vectors=True)[0].vector
    score = client.query_points("texts", query=[1.0, 0.0, 0.0]).points[0].score
    return models.Datatype(reported).value, vector, score


results = {name: stored(models.Datatype(name)) for name in ("float32", "float16", "uint8")}
for name, (reported, vector, score) in results.items():
    print(f"{name}: reported {reported}, stored {vector}, score {score}")
print("0.1 in float16 is", float(np.float16(0.1)))
single = np.float32(VECTOR).tolist()
sys.exit(results != {name: (name, single, 300.75) for name in ("float32", "float16", "uint8")})
EOF
