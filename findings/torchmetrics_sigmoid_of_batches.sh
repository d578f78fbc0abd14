#!/usr/bin/env bash
# torchmetrics: the AUROC of cosine similarities depends on the batches, because some of them get a sigmoid.
#
# Versions: torchmetrics 1.9.0, torch 2.13.0 on a CPU, Python 3.11.
# Behavior: update() of BinaryAUROC and BinaryAveragePrecision takes scores outside of [0, 1] for logits and applies a
#   sigmoid. It decides for each batch, so similarities of one batch stay as they are and those of the next are moved
#   to 0.27 and more. Their order is lost, and compute() is wrong. In one batch, the same scores give the right value.
#   There is no option that turns it off; scores that are moved to [0, 1] first, (1 + cosine) / 2, are right in any
#   batches.
# Output seen (positive pairs 0.45 and 0.5, negative pairs 0.1, 0.0 and -0.3, so a perfect ranking):
#   BinaryAUROC: one batch 1.0, two batches 0.833
#   BinaryAveragePrecision: one batch 1.0, two batches 0.833
#   BinaryAUROC of (1 + cosine) / 2: one batch 1.0, two batches 1.0
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet --no-compile torch==2.13.0 torchmetrics==1.9.0 || exit 2
"$folder/bin/python" -W ignore - <<'EOF'
import sys

import torch
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision

scores = torch.tensor([0.45, 0.1, 0.5, -0.3, 0.0])
labels = torch.tensor([1, 0, 1, 0, 0])


def measure(kind, scores, sizes):
    metric = kind()
    for batch, batch_labels in zip(scores.split(sizes), labels.split(sizes)):
        metric.update(batch, batch_labels)
    return round(metric.compute().item(), 3)


results = {}
moved = (1 + scores) / 2
for kind, name, values in (
    (BinaryAUROC, "BinaryAUROC", scores),
    (BinaryAveragePrecision, "BinaryAveragePrecision", scores),
    (BinaryAUROC, "BinaryAUROC of (1 + cosine) / 2", moved),
):
    results[name] = [measure(kind, values, [5]), measure(kind, values, [2, 3])]
    print(f"{name}: one batch {results[name][0]}, two batches {results[name][1]}")
sys.exit(list(results.values()) != [[1, 0.833], [1, 0.833], [1, 1]])
EOF
