"""Padding of rows to a common length."""

import torch
from torch import Tensor
from torch.nn.functional import pad


def join_rows(first: Tensor, second: Tensor, value: int, side: str) -> Tensor:
    """Concatenate rows (N, L) and (M, K) to (N + M, max(L, K)), padded with a value on the side `left` or `right`."""
    length = max(first.shape[1], second.shape[1])
    missing = [length - rows.shape[1] for rows in (first, second)]
    sides = [(0, number) if side == "right" else (number, 0) for number in missing]
    return torch.cat([pad(rows, at, value=value) for rows, at in zip((first, second), sides)])
