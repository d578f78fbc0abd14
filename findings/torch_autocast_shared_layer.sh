#!/usr/bin/env bash
# Under autocast, the gradients of a layer that is used several times, as in ALBERT, add up in half precision.
#
# Versions: torch 2.13.0 on a CPU, Python 3.11.
# Behavior: Autocast casts a float32 weight once and caches the copy, so all uses of the layer share it, and the sum of
#   their gradients is rounded to bfloat16 after each use before it becomes float32. With `cache_enabled=False`, each use
#   has its own copy, and the gradients add up in float32. The documentation calls the cache an optimization. Models
#   with one set of weights for all layers, and layers that are called once per step of a loop, lose bits of small
#   updates; models in which every layer is used once do not.
# Output seen:
#   cache on:  0.0% of the gradients of a layer used 24 times need more than bfloat16
#   cache off: 98.6%
#   they differ by 0.5% of the norm; for a layer used once, by 0.0%
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet --no-compile torch==2.13.0 || exit 2
"$folder/bin/python" - <<'EOF'
import sys

import torch
from torch.nn.functional import layer_norm

torch.manual_seed(0)
states = torch.randn(64, 256)
layer = torch.nn.Linear(256, 256, bias=False)
direction = torch.linspace(-1, 1, 256)


def gradient(uses, cached):
    layer.zero_grad()
    x = states
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
        for _ in range(uses):
            x = layer_norm(layer(x).float() + x, (256,))
    (x * direction).sum().backward()
    return layer.weight.grad.clone()


def needs_more(x):
    return (x != x.bfloat16().float()).float().mean().item()


def difference(x, y):
    return ((x - y).norm() / y.norm()).item()


on, off = gradient(24, True), gradient(24, False)
once = difference(gradient(1, True), gradient(1, False))
print(f"cache on:  {needs_more(on):.1%} of the gradients of a layer used 24 times need more than bfloat16")
print(f"cache off: {needs_more(off):.1%}")
print(f"they differ by {difference(on, off):.1%} of the norm; for a layer used once, by {once:.1%}")
sys.exit(not (needs_more(on) == 0 and needs_more(off) > 0.9 and difference(on, off) > 0.002 and once == 0))
EOF
