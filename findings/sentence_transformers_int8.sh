#!/usr/bin/env bash
# The int8 embedding of a text depends on the texts that are quantized with it, and one text alone is an error.
#
# Versions: sentence-transformers 6.2.0, torch 2.13.0 on a CPU, Python 3.11.
# Behavior: quantize_embeddings(precision="int8") without ranges takes minimum and maximum of each dimension from the
#   batch. The same embedding gets other numbers in another batch, so documents and queries that are quantized apart do
#   not match. A batch of one raises ValueError. Embeddings of a
#   width that is not a multiple of 8 get zero bits at the end of their last byte for ubinary: width 10 gives 2 bytes.
# Output seen:
#   first row among 100: [0, -17, 38]
#   first row among 2: [127, -128, 126]
#   cosine of the two: 0.71
#   one row: ValueError
#   10 dimensions as ubinary: 16 bits, of which the last 6 are 0
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --no-compile torch==2.13.0 sentence-transformers==6.2.0 transformers==5.23.0 || exit 2
"$folder/bin/python" -W ignore - 2> /dev/null <<'EOF'
import sys

import numpy as np
from sentence_transformers.util import quantize_embeddings

vectors = np.random.default_rng(0).normal(size=(100, 10)).astype(np.float32)
many = quantize_embeddings(vectors, precision="int8")[0].astype(float)
few = quantize_embeddings(vectors[:2], precision="int8")[0].astype(float)
cosine = many @ few / np.linalg.norm(many) / np.linalg.norm(few)
try:
    quantize_embeddings(vectors[:1], precision="int8")
    alone = "no error"
except ValueError:
    alone = "ValueError"
bits = np.unpackbits(quantize_embeddings(vectors[:50], precision="ubinary"), axis=1)
print(f"first row among 100: {many[:3].astype(int).tolist()}")
print(f"first row among 2: {few[:3].astype(int).tolist()}")
print(f"cosine of the two: {cosine:.2f}")
print(f"one row: {alone}")
print(f"10 dimensions as ubinary: {bits.shape[1]} bits, of which the last 6 are {bits[:, 10:].max()}")
sys.exit(not (cosine < 0.9 and alone == "ValueError" and bits.shape[1] == 16 and not bits[:, 10:].any()))
EOF
