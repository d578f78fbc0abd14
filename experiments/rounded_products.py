"""The `informin` command with linear layers of bf16 weights computed in float32, and their results rounded to bf16.

    python -m experiments.rounded_products eval --model_name MODEL --retrieval FOLDER --precision bf16

Hardware for bf16 also adds up products in float32. On a processor without it, PyTorch's own products of bf16 matrices
take about six times as long.
"""

import sys

import torch
from torch import Tensor

from informin.cli import main

own_linear = torch.nn.functional.linear


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x weight^T + bias in the dtype of x, computed in float32."""
    return own_linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)


if __name__ == "__main__":
    torch.nn.functional.linear = linear
    sys.exit(main())
