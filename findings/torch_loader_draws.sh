#!/usr/bin/env bash
# Reading a DataLoader that shuffles nothing changes the random numbers that come after it.
#
# Version: torch 2.13.0 on a CPU, Python 3.11.
# Behavior: each iter() of a DataLoader takes a number from torch's global generator as the seed of its workers, also
#   without workers and without shuffling. An evaluation in the middle of training therefore changes every later dropout
#   mask. A loader with a generator of its own does not.
# Output seen:
#   no loader: 0.7576
#   a loader was read: 0.4031
#   a loader with its own generator was read: 0.7576
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet --no-compile torch==2.13.0 numpy==2.4.6 || exit 2
"$folder/bin/python" - <<'EOF'
import sys

import torch
from torch.utils.data import DataLoader


def draw_after(*loaders):
    torch.manual_seed(1)
    for loader in loaders:
        list(loader)
    return torch.rand(1).item()


nothing = draw_after()
shared = draw_after(DataLoader([1, 2, 3]))
own = draw_after(DataLoader([1, 2, 3], generator=torch.Generator()))
print(f"no loader: {nothing:.4f}")
print(f"a loader was read: {shared:.4f}")
print(f"a loader with its own generator was read: {own:.4f}")
sys.exit(not (shared != nothing and own == nothing))
EOF
