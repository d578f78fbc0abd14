"""Blocks of embedding rows: reading, unit length, and exact nearest neighbors."""

import mmap
import os
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from informin.distributed import rank, world_size
from informin.errors import UsageError

ROWS_AT_ONCE = 4_096  # rows per block. Fixed, so that the rounding does not depend on the number of processes.
CHUNK = 65_536  # rows read at once from a memory map
MOST_COSINES = 2**27  # cosines in memory at once: 512 MiB


def unit_rows(x: Tensor) -> Tensor:
    """Return rows (N, d) scaled to unit length, whatever their length. Rows of zeros stay zero."""
    length = x.norm(dim=-1, keepdim=True)
    limits = torch.finfo(x.dtype)
    extreme = (length < limits.tiny**0.5 / limits.eps) | length.isinf()  # squares underflow or overflow
    if extreme.any():
        largest = x.abs().amax(-1, keepdim=True)
        x = torch.where(extreme & (largest > 0), x / largest, x)
        length = x.norm(dim=-1, keepdim=True)
    return x / length.where(length > 0, 1.0)


def own_blocks(rows: int) -> Iterator[slice]:
    """Yield the blocks of rows that this process handles."""
    for number, start in enumerate(range(0, rows, ROWS_AT_ONCE)):
        if number % world_size() == rank():
            yield slice(start, start + ROWS_AT_ONCE)


def read_rows(x: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
    """Return a copy of some rows of an array or memory map, in native byte order.

    Rows of a memory map are read from its file: if another program truncated it, touching the map would end the process
    with SIGBUS.

    Args:
        x: (n, d) array.
        rows: A slice without a step, or indices (m,) from 0.

    Raises:
        UsageError: The file was truncated.
    """
    copy = _from_file(x, rows) if isinstance(x, np.memmap) and x.mode != "c" else np.array(x[rows])
    return copy.astype(copy.dtype.newbyteorder("="), copy=False)


def _from_file(x: np.memmap, rows: slice | np.ndarray) -> np.ndarray:
    """Return rows of a memory map, read from its file if this is possible; see `read_rows`."""
    whole = x.base if isinstance(x.base, np.memmap) else x
    if not isinstance(whole.base, mmap.mmap):
        return np.array(x[rows])
    size = whole.base.size()  # of the file, now
    offset = whole.offset + x.ctypes.data - whole.ctypes.data
    end = offset + sum((count - 1) * stride for count, stride in zip(x.shape, x.strides)) + x.itemsize
    truncated = UsageError(
        f"{x.filename} was truncated while it was read", fix="Write the file again, and do not change it meanwhile."
    )
    if size < end:
        raise truncated
    try:
        file = open(x.filename, "rb", buffering=0)
    except (OSError, TypeError):  # deleted, or without a name
        return np.array(x[rows])
    with file:
        if os.fstat(file.fileno()).st_size != size or not x.flags.c_contiguous:  # another file has its name now
            return np.array(x[rows])
        indices = range(len(x))[rows] if isinstance(rows, slice) else rows.tolist()
        copy = np.empty((len(indices), x.shape[1]), x.dtype)
        if isinstance(indices, range):
            file.seek(offset + indices.start * x.strides[0])
            read = np.fromfile(file, x.dtype, copy.size)
            if read.size < copy.size:
                raise truncated
            return read.reshape(copy.shape)
        for row, index in zip(copy, indices):
            file.seek(offset + index * x.strides[0])
            if file.readinto(row) < row.nbytes:
                raise truncated
    return copy


def finite_chunk(x: np.ndarray, rows: slice) -> Tensor:
    """Return a chunk of an array or memory map as float64.

    Raises:
        UsageError: It contains NaN or infinity, or its file was truncated.
    """
    chunk = read_rows(x, rows)
    require_finite(chunk, rows.start or 0)
    return torch.from_numpy(chunk.astype(np.float64, copy=False))


def require_finite(chunk: np.ndarray, start: int = 0, where: str = "Input X") -> None:
    """Raise UsageError if rows contain NaN or infinity.

    Args:
        chunk: (n, d) rows.
        start: Number of the first row.
        where: Name of the whole array in the message.
    """
    finite = np.isfinite(chunk)
    if not finite.all():
        bad = start + int(np.flatnonzero(~finite.all(-1))[0])
        raise UsageError(f"{where} contains NaN or infinity (first in row {bad})", fix="Remove or recompute this row.")


def nearest_rows(anchors: Tensor, candidates: Tensor, k: int, *, first: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the k nearest candidates of each anchor by cosine, nearest first.

    The search is exact up to float32 rounding: it compares every pair, in blocks, on the accelerator if there is one.
    The cosines are then computed in the precision of the rows.

    Args:
        anchors: (A, d) unit vectors.
        candidates: (C, d) unit vectors, with C > k.
        first: Index of the first anchor among the candidates, if the anchors are candidates themselves: an anchor is
            not its own neighbor.

    Returns:
        Indices (A, k) int64 and cosines (A, k) in the dtype of the rows, on the CPU.
    """
    accelerator = torch.accelerator.current_accelerator() or torch.device("cpu")
    columns = candidates.to(accelerator, torch.float32).T.contiguous()
    step = max(1, min(ROWS_AT_ONCE, MOST_COSINES // len(candidates)))
    indices = []
    for start in range(0, len(anchors), step):
        block = anchors[start : start + step].to(accelerator, torch.float32)
        similarity = block @ columns  # (step, C)
        if first is not None:
            rows = torch.arange(len(block), device=accelerator)
            similarity[rows, first + start + rows] = -torch.inf
        indices.append(similarity.topk(k, dim=-1).indices.cpu())
    found = torch.cat(indices)
    return found, torch.stack([(anchors * candidates[column]).sum(-1) for column in found.T], dim=1)


def neighbor_means(candidates: Tensor, indices: Tensor, cosines: Tensor) -> Tensor:
    """Return the mean (A, d) of each anchor's neighbors, weighted by their cosines cubed."""
    weights = cosines.clamp(min=1e-6) ** 3
    weights = weights / weights.sum(-1, keepdim=True)
    means = torch.zeros(len(indices), candidates.shape[-1], dtype=candidates.dtype)
    for weight, index in zip(weights.T, indices.T):
        means += weight[:, None] * candidates[index]
    return means
