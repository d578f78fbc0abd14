#!/usr/bin/env bash
# Checkpointing computes a block again without the torch function modes of its forward pass: gradients are wrong.
#
# Versions: torch 2.13.0 on a CPU, Python 3.11.
# Behavior: a TorchFunctionMode changes what functions of PyTorch do inside a context; torch.device as a context is one.
#   torch.utils.checkpoint(use_reentrant=False) restores random numbers and autocast when it computes a block again in
#   the backward pass, but not such modes, not even if backward() is called inside the context. If the numbers of saved
#   tensors and their shapes agree by chance, as below, there is no error: the loss is right and the gradient is not.
#   A context_fn that enters the mode again gives the right gradient.
# Output seen:
#   without checkpoint: value 0.7758, gradient 0.3699
#   checkpoint, backward inside the mode: value 0.7758, gradient 0.5749
#   checkpoint, backward after the mode: value 0.7758, gradient 0.5749
#   checkpoint with a context_fn: value 0.7758, gradient 0.3699
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet --no-compile torch==2.13.0 numpy || exit 2
"$folder/bin/python" -W ignore - <<'EOF'
import sys
from contextlib import nullcontext

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint


class Steeper(TorchFunctionMode):
    """Doubles the input of every sigmoid."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.sigmoid:
            args = (2 * args[0],)
        return func(*args, **(kwargs or {}))


def block(x):
    return torch.sigmoid(x).square()


def result(call, inside):
    x = torch.tensor([1.0], requires_grad=True)
    with Steeper():
        y = call(x)
        if inside:
            y.backward()
    if not inside:
        y.backward()
    return y.item(), x.grad.item()


def recomputed(x):
    return checkpoint(block, x, use_reentrant=False)


def recomputed_in_mode(x):
    return checkpoint(block, x, use_reentrant=False, context_fn=lambda: (nullcontext(), Steeper()))


results = {
    "without checkpoint": result(block, inside=False),
    "checkpoint, backward inside the mode": result(recomputed, inside=True),
    "checkpoint, backward after the mode": result(recomputed, inside=False),
    "checkpoint with a context_fn": result(recomputed_in_mode, inside=False),
}
for name, (value, gradient) in results.items():
    print(f"{name}: value {value:.4f}, gradient {gradient:.4f}")
(_, right), *wrong, (_, repaired) = results.values()
same_values = len({round(value, 6) for value, _ in results.values()}) == 1
as_stated = same_values and abs(repaired - right) < 1e-6 and all(abs(found - right) > 0.1 for _, found in wrong)
sys.exit(not as_stated)
EOF
