#!/usr/bin/env bash
# Runs with the seeds 1, 2 and 3 share the order of their data: epoch 2 of one is epoch 1 of the next.
#
# Versions: accelerate 1.15.0, torch 2.13.0 on a CPU, Python 3.11.
# Behavior: SeedableRandomSampler, which transformers' Trainer uses through accelerate, draws epoch e with the seed plus
#   e. Runs of several epochs whose seeds are neighbors read the same batches, one epoch apart, so they are not
#   independent repetitions. Seeds that are further apart than the number of epochs share nothing.
# Output seen:
#   seed 1, epoch 1: [5, 4, 2, 6, 7, 3, 1, 0]
#   seed 1, epoch 2: [0, 4, 7, 2, 6, 5, 1, 3]
#   seed 2, epoch 1: [0, 4, 7, 2, 6, 5, 1, 3]
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet --no-compile torch==2.13.0 accelerate==1.15.0 || exit 2
"$folder/bin/python" - <<'EOF'
import sys

import torch
from accelerate.data_loader import SeedableRandomSampler


def order(seed, epoch):
    sampler = SeedableRandomSampler(range(8), generator=torch.Generator(), data_seed=seed)
    sampler.set_epoch(epoch - 1)
    return list(sampler)


for seed, epoch in ((1, 1), (1, 2), (2, 1)):
    print(f"seed {seed}, epoch {epoch}: {order(seed, epoch)}")
sys.exit(not (order(1, 2) == order(2, 1) and order(1, 1) != order(2, 1)))
EOF
