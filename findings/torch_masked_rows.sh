#!/usr/bin/env bash
# A row that may attend to nothing becomes zeros, an average or NaN, by how the mask is written.
#
# Version: torch 2.13.0 on a CPU, Python 3.11.
# Behavior: scaled_dot_product_attention gives zeros for a row whose boolean mask is all False, and for a row of -inf.
#   With a float mask of the dtype's minimum, which many models use, the same row is the average of all values,
#   including those of padding. A softmax written out gives NaN.
# Output seen (values 0, 1 and 5 are masked for every query):
#   boolean mask: 0.0
#   float mask, -inf: 0.0
#   float mask, minimum: 2.0
#   softmax of -inf: nan
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==2.4.6 || exit 2
"$folder/bin/python" - <<'EOF'
import math
import sys

import torch
from torch.nn.functional import scaled_dot_product_attention

query = torch.tensor([[[[1.0]]]])
key = torch.tensor([[[[1.0], [2.0], [3.0]]]])
value = torch.tensor([[[[0.0], [1.0], [5.0]]]])
masks = {
    "boolean mask": torch.zeros(1, 3, dtype=torch.bool),
    "float mask, -inf": torch.full((1, 3), -torch.inf),
    "float mask, minimum": torch.full((1, 3), torch.finfo(torch.float32).min),
}
results = {name: scaled_dot_product_attention(query, key, value, mask).item() for name, mask in masks.items()}
masked = query @ key.transpose(-1, -2) + masks["float mask, -inf"]
results["softmax of -inf"] = (masked.softmax(-1) @ value).item()
for name, result in results.items():
    print(f"{name}: {result:.1f}")
zero, infinite, minimum, plain = results.values()
sys.exit(not (zero == infinite == 0 and abs(minimum - 2) < 1e-4 and math.isnan(plain)))
EOF
