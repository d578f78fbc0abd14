#!/usr/bin/env bash
# Each training step searches the disk for a package that is not installed, twice.
#
# Versions: accelerate 1.15.0, torch 2.13.0 on a CPU, Python 3.11.
# Behavior: `step` of the optimizer that `Accelerator.prepare` returns asks twice whether lomo_optim is installed. Python
#   does not remember packages that it did not find, so it looks through every folder of sys.path again. transformers'
#   Trainer uses this optimizer. The search costs a part of a millisecond, which counts where a step takes a few, and
#   more where a folder of sys.path is on a network.
# Output seen:
#   5 steps: 10 searches for lomo_optim, found: False
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet --no-compile torch==2.13.0 accelerate==1.15.0 || exit 2
"$folder/bin/python" - <<'EOF'
import importlib.util
import sys

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(2, 2)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
search = importlib.util.find_spec
names = []


def counted(name, *others):
    names.append(name)
    return search(name, *others)


importlib.util.find_spec = counted
for _ in range(5):
    accelerator.backward(model(torch.ones(1, 2)).sum())
    optimizer.step()
    optimizer.zero_grad()
found = search("lomo_optim") is not None
print(f"5 steps: {names.count('lomo_optim')} searches for lomo_optim, found: {found}")
sys.exit(not (names == ["lomo_optim"] * 10 and not found))
EOF
